// SPDX-License-Identifier: Apache-2.0
//
// The GPU's side: driver, device files, CUPTI.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "launcher/doctor/checks.hpp"
#include "launcher/doctor/python_install.hpp"

namespace gpubusy::launcher::doctor {
namespace {

constexpr const char* kDriverVersion = "/proc/driver/nvidia/version";
constexpr const char* kWslDevice = "/dev/dxg";
constexpr const char* kWslLibraries = "/usr/lib/wsl/lib/libcuda.so.1";

struct Version {
  unsigned major = 0, minor = 0, patch = 0;
  auto operator<=>(const Version&) const = default;
};

std::optional<Version> version_in(const std::string& text) {
  Version v;
  if (std::sscanf(text.c_str(), "%u.%u.%u", &v.major, &v.minor, &v.patch) < 2) return std::nullopt;
  return v;
}

// The version in "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar ...".
std::string kernel_module_version(const std::string& text) {
  const std::string line = text.substr(0, text.find('\n'));
  for (std::size_t at = 0; at < line.size();) {
    const std::size_t begin = line.find_first_not_of(' ', at);
    if (begin == line.npos) break;
    const std::size_t end = std::min(line.find(' ', begin), line.size());
    const std::string word = line.substr(begin, end - begin);
    at = end;
    if (word.find('.') != word.npos && word.find_first_not_of("0123456789.") == word.npos) {
      return word;
    }
  }
  return {};
}

std::string driver_library(const Machine& m) {
  const std::string found = m.find_shared_library("libcuda.so.1");
  if (!found.empty()) return found;
  return m.exists(kWslLibraries) ? kWslLibraries : "";
}

// "550.54.15" of ".../libcuda.so.550.54.15"; empty where the name does not tell.
std::string driver_library_version(const Machine& m) {
  const std::string real = m.resolve(driver_library(m));
  const std::size_t at = real.rfind("libcuda.so.");
  if (at == real.npos) return {};
  const std::string version = real.substr(at + 11);
  return version.find('.') == version.npos ? std::string() : version;
}

// Numbers of /dev/nvidia0 and so on.
std::vector<unsigned> device_numbers(const Machine& m) {
  std::vector<unsigned> numbers;
  for (const std::string& name : m.list("/dev")) {
    if (!name.starts_with("nvidia") || name.size() == 6) continue;
    if (name.find_first_not_of("0123456789", 6) != name.npos) continue;
    numbers.push_back(static_cast<unsigned>(std::strtoul(name.c_str() + 6, nullptr, 10)));
  }
  return numbers;
}

std::size_t mig_instances(const Machine& m) {
  std::size_t count = 0;
  for (const std::string& gpu : m.list("/proc/driver/nvidia/capabilities")) {
    for (const std::string& name : m.list("/proc/driver/nvidia/capabilities/" + gpu + "/mig")) {
      count += name.starts_with("gi");
    }
  }
  return count;
}

constexpr const char* kContainerCure =
    "In a container, start it with the GPU: docker run --gpus all, podman run --device "
    "nvidia.com/gpu=all, apptainer exec --nv, resources.limits nvidia.com/gpu in a pod.";

// The oldest driver with which programs of a CUDA version run at all (NVIDIA's minor version
// compatibility). Zero: not known.
Version oldest_driver(unsigned cuda_major) {
  switch (cuda_major) {
    case 11: return {450, 80, 2};
    case 12: return {525, 60, 13};
    case 13: return {580, 65, 6};
    default: return {};
  }
}

std::string first_existing(const Machine& m, const std::string& folder) {
  for (const std::string& name : m.list(folder)) {
    if (name.starts_with("libcupti") && name.find(".so.") != name.npos) return folder + "/" + name;
  }
  return {};
}

}  // namespace

bool is_simulated(const Machine& m) {
  return m.variable("LD_PRELOAD").value_or("").find("libgpubusy_sim.so") != std::string::npos;
}

std::optional<Outcome> check_device(const Machine& m) {
  if (!is_simulated(m)) return std::nullopt;
  return Outcome{
      Status::kOk, "simulated, by gpubusy-sim",
      "Calls, streams, copies and time are modelled; a driver is neither needed nor looked for.",
      ""};
}

std::optional<Outcome> check_driver(const Machine& m) {
  if (is_simulated(m)) return std::nullopt;
  if (const auto text = m.read(kDriverVersion)) {
    const std::string version = kernel_module_version(*text);
    const std::size_t mig = mig_instances(m);
    return Outcome{version.empty() ? Status::kUnknown : Status::kOk,
                   fmt::format("{}{}", version.empty() ? "version not known" : version,
                               mig > 0 ? fmt::format(", {} MIG instances", mig) : ""),
                   "", ""};
  }
  if (m.exists(kWslDevice)) {
    return Outcome{Status::kOk, "Windows' own, by WSL (/dev/dxg)", "", ""};
  }
  return Outcome{
      Status::kFailure, "not loaded: there is no /proc/driver/nvidia/version",
      "Without it no program uses a GPU, and there is nothing to record.",
      "Run where the GPU is; `gpubusy-sim gpubusy COMMAND` tries a program on a simulated device."};
}

std::optional<Outcome> check_driver_library(const Machine& m) {
  if (is_simulated(m)) return std::nullopt;
  const std::string path = driver_library(m);
  if (path.empty()) {
    return Outcome{Status::kFailure, "libcuda.so.1 is in no directory that ld.so searches",
                   "CUDA loads the driver's library by this name.",
                   std::string("Install the driver's user part, or add its directory to "
                               "LD_LIBRARY_PATH (WSL: /usr/lib/wsl/lib). ") +
                       kContainerCure};
  }
  const std::string version = driver_library_version(m);
  if (path.find("/stubs/") != std::string::npos) {
    return Outcome{Status::kFailure, path + " is the toolkit's stub",
                   "A stub is for linking only: every call fails.",
                   "Take the stubs directory out of LD_LIBRARY_PATH."};
  }
  const auto text = m.read(kDriverVersion);
  const std::string module = text ? kernel_module_version(*text) : "";
  const std::string found =
      fmt::format("{}{}", path, version.empty() ? "" : fmt::format(", version {}", version));
  if (!version.empty() && !module.empty() && version != module &&
      path.find("compat") == std::string::npos) {
    return Outcome{Status::kFailure, fmt::format("{}; the kernel module is {}", found, module),
                   "CUDA refuses to start with a library of another version than the module.",
                   "Reload the module or reboot after an update of the driver; in a container, let "
                   "the runtime mount the host's library and bring none."};
  }
  return Outcome{Status::kOk, found, "", ""};
}

std::optional<Outcome> check_device_files(const Machine& m) {
  if (is_simulated(m)) return std::nullopt;
  if (m.exists(kWslDevice)) {
    return m.can_use(kWslDevice) ? Outcome{Status::kOk, kWslDevice, "", ""}
                                 : Outcome{Status::kFailure, "/dev/dxg cannot be opened",
                                           "WSL's GPU is behind it.", "Check its permissions."};
  }
  if (!m.exists(kDriverVersion)) return std::nullopt;  // said already
  const std::vector<unsigned> numbers = device_numbers(m);
  if (numbers.empty()) {
    return Outcome{Status::kFailure, "the driver is loaded, but there is no /dev/nvidia0",
                   "The program is given no GPU here.", kContainerCure};
  }
  std::vector<std::string> paths = {"/dev/nvidiactl", "/dev/nvidia-uvm"};
  for (const unsigned n : numbers) paths.push_back(fmt::format("/dev/nvidia{}", n));
  std::string closed;
  for (const std::string& path : paths) {
    if (m.exists(path) && !m.can_use(path)) closed += (closed.empty() ? "" : ", ") + path;
  }
  if (!closed.empty()) {
    return Outcome{Status::kFailure, closed + " cannot be opened by this user",
                   "CUDA fails to initialise.",
                   "Join the group that owns the files (ls -l /dev/nvidia*), or ask for the GPU by "
                   "the batch system."};
  }
  if (!m.exists("/dev/nvidiactl") || !m.exists("/dev/nvidia-uvm")) {
    return Outcome{Status::kWarning,
                   fmt::format("{} is not there",
                               m.exists("/dev/nvidiactl") ? "/dev/nvidia-uvm" : "/dev/nvidiactl"),
                   "CUDA makes it at its first start if it may; in a container it may not.",
                   "Run nvidia-modprobe -u -c0 as root, or start the container with the GPU."};
  }
  return Outcome{Status::kOk,
                 fmt::format("{} GPU{}", numbers.size(), numbers.size() == 1 ? "" : "s"), "", ""};
}

std::optional<Outcome> check_visible_devices(const Machine& m) {
  const auto nvidia = m.variable("NVIDIA_VISIBLE_DEVICES");
  if (nvidia && (*nvidia == "void" || *nvidia == "none") && !is_simulated(m) &&
      device_numbers(m).empty()) {
    return Outcome{Status::kWarning, "NVIDIA_VISIBLE_DEVICES=" + *nvidia,
                   "The container's runtime gives it no GPU.",
                   "Start the container with NVIDIA_VISIBLE_DEVICES=all, or --gpus all."};
  }
  const auto cuda = m.variable("CUDA_VISIBLE_DEVICES");
  if (!cuda) return std::nullopt;
  const std::string found = "CUDA_VISIBLE_DEVICES=" + *cuda;
  const std::string why =
      "CUDA stops reading at the first entry that it does not know, and hides every GPU behind it.";
  const std::string first = cuda->substr(0, cuda->find(','));
  if (first.find_first_not_of(" ") == first.npos || first[0] == '-' || first == "NoDevFiles") {
    return Outcome{Status::kFailure, found, "It hides every GPU.",
                   "Unset it, or name GPUs: CUDA_VISIBLE_DEVICES=0,1"};
  }
  const std::vector<unsigned> numbers = device_numbers(m);
  for (std::size_t at = 0; at <= cuda->size();) {
    const std::size_t end = std::min(cuda->find(',', at), cuda->size());
    std::string entry = cuda->substr(at, end - at);
    at = end + 1;
    entry.erase(0, std::min(entry.find_first_not_of(' '), entry.size()));
    if (entry.starts_with("GPU-") || entry.starts_with("MIG-")) continue;
    if (entry.empty() || entry.find_first_not_of("0123456789 ") != entry.npos) {
      return Outcome{Status::kWarning, fmt::format("{}: '{}' is no GPU", found, entry), why,
                     "Use numbers from 0 or GPU-... and MIG-... names, with commas between."};
    }
    const unsigned long number = std::strtoul(entry.c_str(), nullptr, 10);
    if (!is_simulated(m) && !numbers.empty() && number >= numbers.size()) {
      return Outcome{Status::kWarning,
                     fmt::format("{}: there are {} GPUs, numbered from 0", found, numbers.size()),
                     why, "Inside a container or a batch job GPUs are numbered from 0 again."};
    }
  }
  return Outcome{Status::kOk, found, "", ""};
}

std::optional<Outcome> check_driver_for_torch(const Machine& m) {
  if (is_simulated(m)) return std::nullopt;
  const auto python = python_of(m);
  const auto torch = python ? torch_of(m, *python) : std::nullopt;
  if (!torch || torch->cuda.empty()) return std::nullopt;
  std::string driver = driver_library_version(m);
  if (driver.empty()) {
    const auto text = m.read(kDriverVersion);
    driver = text ? kernel_module_version(*text) : "";
  }
  const auto have = version_in(driver);
  const auto cuda = version_in(torch->cuda);
  if (!have || !cuda) return std::nullopt;
  const Version least = oldest_driver(cuda->major);
  if (least == Version{}) {
    return Outcome{Status::kUnknown,
                   fmt::format("driver {}, PyTorch for CUDA {}", driver, torch->cuda),
                   "Which driver this CUDA version needs is not known here.", ""};
  }
  const std::string found = fmt::format("driver {}, PyTorch for CUDA {} needs {}.{:02}.{:02}",
                                        driver, torch->cuda, least.major, least.minor, least.patch);
  if (*have < least) {
    return Outcome{Status::kFailure, found, "torch.cuda.is_available() is False with it.",
                   fmt::format("Update the driver, or install PyTorch for CUDA {} or older.",
                               cuda->major - 1)};
  }
  return Outcome{Status::kOk, found, "", ""};
}

std::optional<Outcome> check_cupti(const Machine& m) {
  if (m.config.device_time_kind == config::DeviceTimeKind::kEvents ||
      m.config.device_time_kind == config::DeviceTimeKind::kOff) {
    return Outcome{Status::kOk, fmt::format("not used (--device-time {})", m.config.device_time),
                   "", ""};
  }
  const bool alone = m.config.device_time_kind == config::DeviceTimeKind::kCupti;
  const std::string given = m.config.cupti;
  if (!given.empty() && !m.exists(given)) {
    return Outcome{alone ? Status::kFailure : Status::kWarning,
                   fmt::format("--cupti '{}' is not there", given),
                   "Where the program brings no CUPTI of its own, device times come from CUDA "
                   "events, or not at all with --device-time cupti.",
                   "Name the file libcupti.so of a CUDA toolkit."};
  }
  std::string found = given;
  if (is_simulated(m) && found.empty()) {
    const std::string preloads = m.variable("LD_PRELOAD").value_or("");
    const std::size_t at = preloads.find("libcupti.so");
    if (at != preloads.npos) {
      const std::size_t begin = preloads.find_last_of(" :", at);
      const std::size_t from = begin == preloads.npos ? 0 : begin + 1;
      found = preloads.substr(from, preloads.find_first_of(" :", at) - from);
    }
  }
  if (const auto python = python_of(m); found.empty() && python) {
    if (const auto torch = torch_of(m, *python)) {
      const std::string site = torch->folder.substr(0, torch->folder.rfind('/'));
      for (const char* folder : {"/nvidia/cuda_cupti/lib", "/nvidia/cu13/lib", "/torch/lib"}) {
        if (found.empty()) found = first_existing(m, site + folder);
      }
    }
  }
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"}) {
    const std::string home = m.variable(name).value_or("");
    for (const char* folder : {"/extras/CUPTI/lib64", "/lib64"}) {
      if (found.empty() && !home.empty()) found = first_existing(m, home + folder);
    }
  }
  for (const char* name : {"libcupti.so.13", "libcupti.so.12", "libcupti.so.11.8"}) {
    if (found.empty()) found = m.find_shared_library(name);
  }
  for (const char* folder : {"/usr/local/cuda/extras/CUPTI/lib64", "/usr/local/cuda/lib64"}) {
    if (found.empty()) found = first_existing(m, folder);
  }
  if (found.empty()) {
    return Outcome{alone ? Status::kFailure : Status::kWarning, "no libcupti was found",
                   "Device times come from CUDA events then: a few us too long on an idle GPU, and "
                   "a CUDA graph is one piece. --device-time cupti gives none at all.",
                   "pip install nvidia-cuda-cupti-cu12 beside PyTorch, install the CUDA toolkit, "
                   "or name a file with --cupti."};
  }
  return Outcome{Status::kOk, found, "", ""};
}

std::optional<Outcome> check_profiling_rights(const Machine& m) {
  if (is_simulated(m)) return std::nullopt;
  const auto text = m.read("/proc/driver/nvidia/params");
  if (!text) return std::nullopt;
  const std::size_t at = text->find("RmProfilingAdminOnly:");
  if (at == text->npos) return std::nullopt;
  const std::size_t value = text->find_first_not_of(' ', at + 21);
  const bool restricted = value != text->npos && (*text)[value] == '1';
  return Outcome{Status::kOk,
                 restricted
                     ? "performance counters are for administrators only (RmProfilingAdminOnly: 1)"
                     : "performance counters are open to all",
                 restricted ? "gpubusy reads no counters: CUPTI's activities, which it uses, are "
                              "not restricted by this. Nsight Compute is."
                            : "",
                 ""};
}

}  // namespace gpubusy::launcher::doctor
