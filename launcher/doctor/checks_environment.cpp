// SPDX-License-Identifier: Apache-2.0
//
// What the environment brings: other tools, the loader's variables, containers, schedulers.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "launcher/doctor/checks.hpp"

namespace gpubusy::launcher::doctor {
namespace {

std::vector<std::string> entries_of(const std::string& preloads) {
  std::vector<std::string> out;
  for (std::size_t at = 0; at < preloads.size();) {
    const std::size_t end = std::min(preloads.find_first_of(" :", at), preloads.size());
    if (end > at) out.push_back(preloads.substr(at, end - at));
    at = end + 1;
  }
  return out;
}

bool is_ours(std::string_view entry) {
  return entry.find("libgpubusy") != entry.npos || entry.find("gpubusy-sim/") != entry.npos;
}

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> parts) {
  return std::any_of(parts.begin(), parts.end(),
                     [&](std::string_view part) { return name.find(part) != name.npos; });
}

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : ", ") + word;
  return out;
}

}  // namespace

std::optional<Outcome> check_other_tools(const Machine& m) {
  std::vector<std::string> tools, harmless;
  if (const auto value = m.variable("CUDA_INJECTION64_PATH"); value && !value->empty()) {
    tools.push_back("CUDA_INJECTION64_PATH=" + *value);
  }
  for (const std::string& entry : m.variables_from("NSYS_")) {
    if (entry.starts_with("NSYS_PROFILING_SESSION_ID=")) tools.push_back(entry);
  }
  if (const auto value = m.variable("NVTX_INJECTION64_PATH");
      value && !value->empty() && !is_ours(*value)) {
    harmless.push_back("NVTX_INJECTION64_PATH=" + *value);
  }
  if (const auto value = m.variable("KINETO_USE_DAEMON"); value && *value != "0") {
    harmless.push_back("KINETO_USE_DAEMON=" + *value);
  }
  if (!tools.empty()) {
    return Outcome{Status::kWarning, joined(tools),
                   "Another tool has CUPTI: it keeps all of its data, and gpubusy's device times "
                   "come from CUDA events.",
                   "For CUPTI's times run without the other tool."};
  }
  if (!harmless.empty()) {
    return Outcome{Status::kWarning, joined(harmless),
                   "NVTX ranges go to the tool that is named and are missing from the verdict; a "
                   "Kineto daemon may take CUPTI for a while.",
                   "Unset it to have the ranges."};
  }
  return Outcome{Status::kOk, "none in the environment", "", ""};
}

std::optional<Outcome> check_other_preloads(const Machine& m) {
  const std::string value = m.variable("LD_PRELOAD").value_or("");
  std::vector<std::string> others, missing, risky;
  bool asan = false;
  for (const std::string& entry : entries_of(value)) {
    if (is_ours(entry)) continue;
    others.push_back(entry);
    if (entry.find('/') != entry.npos && entry.find('$') == entry.npos && !m.exists(entry)) {
      missing.push_back(entry);
    }
    if (is_one_of(entry, {"libvgpu", "ToolsInjection", "libcuda-control", "librocprof",
                          "libnvshare", "libaccinj"})) {
      risky.push_back(entry);
    }
    asan = asan || is_one_of(entry, {"libasan.so", "libclang_rt.asan"});
  }
  if (others.empty()) return std::nullopt;
  if (!missing.empty()) {
    return Outcome{Status::kWarning, joined(missing) + " in LD_PRELOAD is not there",
                   "ld.so prints an error for it in every program, with or without gpubusy.",
                   "Take it out of LD_PRELOAD."};
  }
  if (!risky.empty()) {
    return Outcome{Status::kWarning, joined(risky) + " in LD_PRELOAD",
                   "It intercepts CUDA as well. gpubusy goes in front and sees the program's "
                   "calls; what the other library calls itself may be missing or counted.",
                   "If the verdict looks wrong, run without it."};
  }
  return Outcome{Status::kOk,
                 joined(others) + (asan ? "; the AddressSanitizer's runtime stays in front" : ""),
                 "Kept, behind libgpubusy.so.", ""};
}

std::optional<Outcome> check_loader_variables(const Machine& m) {
  if (const auto value = m.variable("LD_AUDIT"); value && !value->empty()) {
    return Outcome{Status::kWarning, "LD_AUDIT=" + *value,
                   "An auditor can bind symbols past the hooks, and slows every call by the PLT.",
                   "Unset LD_AUDIT if the report sees fewer calls than there were."};
  }
  const std::string tunables = m.variable("GLIBC_TUNABLES").value_or("");
  if (is_one_of(tunables, {"x86_shstk", "x86_ibt", "hwcaps=SHSTK", "hwcaps=IBT"})) {
    return Outcome{Status::kUnknown, "GLIBC_TUNABLES=" + tunables,
                   "gpubusy has not been tried with shadow stacks or indirect branch tracking on.",
                   ""};
  }
  if (const auto value = m.variable("LD_BIND_NOW"); value && !value->empty()) {
    return Outcome{Status::kOk, "LD_BIND_NOW=" + *value, "Hooks work with it as without.", ""};
  }
  return std::nullopt;
}

std::optional<Outcome> check_slow_variables(const Machine& m) {
  struct Slow {
    const char *name, *why;
  };
  constexpr Slow kSlow[] = {
      {"CUDA_LAUNCH_BLOCKING", "every launch waits for the GPU, so host and GPU never overlap"},
      {"PYTORCH_NO_CUDA_MEMORY_CACHING", "every tensor is a cudaMalloc and a cudaFree"},
      {"PYTORCH_NO_HIP_MEMORY_CACHING", "every tensor is a cudaMalloc and a cudaFree"},
      {"TORCH_CUDA_SANITIZER", "every kernel's accesses are followed"},
      {"TORCH_NCCL_BLOCKING_WAIT", "the host waits for every collective"},
  };
  std::string names, reasons;
  for (const Slow& slow : kSlow) {
    const auto value = m.variable(slow.name);
    if (!value || value->empty() || *value == "0") continue;
    names += (names.empty() ? "" : ", ") + std::string(slow.name) + "=" + *value;
    reasons += (reasons.empty() ? "" : "; ") + std::string(slow.why);
  }
  if (names.empty()) return std::nullopt;
  return Outcome{
      Status::kWarning, names,
      fmt::format("The verdict is right for this setting, but the setting is the cause: {}.",
                  reasons),
      "Unset it to measure the program as it normally runs."};
}

std::optional<Outcome> check_container(const Machine& m) {
  std::vector<std::string> kinds;
  if (m.exists("/.dockerenv")) kinds.push_back("docker");
  if (m.exists("/run/.containerenv")) kinds.push_back("podman");
  if (m.variable("KUBERNETES_SERVICE_HOST")) kinds.push_back("Kubernetes");
  if (m.variable("APPTAINER_CONTAINER") || m.variable("SINGULARITY_CONTAINER")) {
    kinds.push_back("apptainer");
  }
  if (m.read("/proc/version").value_or("").find("microsoft") != std::string::npos) {
    kinds.push_back("WSL");
  }
  if (kinds.empty()) return std::nullopt;
  const std::string status = m.read("/proc/self/status").value_or("");
  const bool filtered = status.find("\nSeccomp:\t2") != status.npos;
  return Outcome{Status::kOk, joined(kinds) + (filtered ? ", with a seccomp filter" : ""),
                 "gpubusy needs no capability, ptrace or perf right. Recordings outside a mounted "
                 "directory go with the container.",
                 ""};
}

std::optional<Outcome> check_scheduler(const Machine& m) {
  const auto job = m.variable("SLURM_JOB_ID");
  if (!job) return std::nullopt;
  const std::string passed = m.variable("SLURM_EXPORT_ENV").value_or("ALL");
  if (passed.find("ALL") == passed.npos) {
    return Outcome{
        Status::kWarning, fmt::format("Slurm job {}, SLURM_EXPORT_ENV={}", *job, passed),
        "srun passes only these variables to its tasks, and LD_PRELOAD is not among them.",
        "srun gpubusy -o DIR COMMAND, which needs nothing passed."};
  }
  return Outcome{Status::kOk, fmt::format("Slurm job {}; ranks come from SLURM_PROCID", *job),
                 "Each rank records for itself: srun gpubusy -o DIR COMMAND.", ""};
}

std::optional<Outcome> check_security(const Machine& m) {
  const bool selinux = m.read("/sys/fs/selinux/enforce").value_or("").starts_with("1");
  std::string profile = m.read("/proc/self/attr/current").value_or("");
  while (!profile.empty() && (profile.back() == '\n' || profile.back() == '\0')) profile.pop_back();
  const bool confined = !selinux && !profile.empty() && profile != "unconfined" &&
                        profile.find("(enforce)") != profile.npos;
  if (!selinux && !confined) return std::nullopt;
  return Outcome{Status::kOk, selinux ? "SELinux enforces" : "AppArmor: " + profile,
                 "Where a program changes its domain at its start, ld.so ignores LD_PRELOAD. The "
                 "child above shows that ordinary programs are not concerned.",
                 ""};
}

}  // namespace gpubusy::launcher::doctor
