// SPDX-License-Identifier: Apache-2.0
//
// Each check of `gpubusy doctor` on made-up machines: where all is well, and where it is not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include <nlohmann/json.hpp>

#include "launcher/doctor/check.hpp"
#include "launcher/doctor/checks.hpp"
#include "launcher/doctor/python_install.hpp"
#include "launcher/doctor/render.hpp"

namespace gpubusy::launcher::doctor {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kModule550 =
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n"
    "GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)\n";
constexpr const char* kOpenModule570 =
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n";

// A healthy machine with one GPU, in a directory of its own.
class MadeUp {
 public:
  MadeUp() {
    char name[] = "/tmp/gpubusy-doctor-XXXXXX";
    if (mkdtemp(name) == nullptr) abort();
    m.root = name;
    m.launcher_version = "0.1.0";
    config::set_defaults(m.config);
    config::Problem problem{};
    if (!config::finish(m.config, problem)) abort();
    file("/proc/self/stat", "1 (x) R");
    file("/proc/driver/nvidia/version", kModule550);
    file("/proc/driver/nvidia/params", "EnableMSI: 1\nRmProfilingAdminOnly: 1\n");
    file("/usr/lib64/libcuda.so.550.54.15", "");
    link("/usr/lib64/libcuda.so.1", "libcuda.so.550.54.15");
    for (const char* device : {"/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"}) {
      file(device, "");
    }
    file("/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.12", "");
    file("/sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n");
    Measured& d = m.measured;
    d.glibc = {2, 36};
    d.architecture = "x86_64";
    d.host = "node1";
    d.online_processors = d.usable_processors = 8;
    d.reads_own_memory = d.reads_own_syscall = true;
    d.clock_ns = 20;
    d.library = "/opt/gpubusy/lib/libgpubusy.so";
    d.library_system = FileSystem{1u << 30, 1u << 30, 0xEF53, false};
    d.self_test = {true, true, "0.1.0", ""};
    d.output = "a new directory here";
    d.output_system = FileSystem{100ull << 30, 200ull << 30, 0xEF53, false};
    d.shared_memory = FileSystem{8ull << 30, 8ull << 30, 0x01021994, false};
  }
  ~MadeUp() { std::filesystem::remove_all(m.root); }

  void file(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(m.root + path).parent_path());
    std::ofstream(m.root + path, std::ios::binary) << text;
  }
  void link(const std::string& path, const std::string& to) {
    std::filesystem::create_directories(std::filesystem::path(m.root + path).parent_path());
    std::filesystem::create_symlink(to, m.root + path);
  }
  void remove(const std::string& path) { std::filesystem::remove_all(m.root + path); }
  void set(const std::string& entry) { m.environment.push_back(entry); }
  // A Python with a torch beside it; it becomes the command.
  void python(const std::string& version, const std::string& torch) {
    file("/env/bin/python" + version, "");
    link("/env/bin/python", "python" + version);
    if (!torch.empty())
      file("/env/lib/python" + version + "/site-packages/torch/version.py", torch);
    m.command = {"/env/bin/python", "train.py"};
    m.measured.program = "/env/bin/python";
    m.measured.preload = PreloadCheck{PreloadVerdict::kPossible, "", "/env/bin/python"};
  }

  Machine m;
};

// What a check must say.
void expect(const std::optional<Outcome>& outcome, Status status, const std::string& found,
            const std::string& cure = "") {
  ASSERT_TRUE(outcome) << found;
  EXPECT_STREQ(status_name(outcome->status), status_name(status)) << outcome->found;
  EXPECT_THAT(outcome->found, HasSubstr(found));
  EXPECT_THAT(outcome->cure, HasSubstr(cure));
  if (status == Status::kWarning || status == Status::kFailure) {
    EXPECT_FALSE(outcome->cure.empty()) << outcome->found;
  }
  EXPECT_EQ(outcome->found.find('\n'), std::string::npos);
}

std::string torch_text(const std::string& version, const std::string& cuda) {
  return "from typing import Optional\n\n__all__ = ['__version__', 'cuda']\n__version__ = '" +
         version + "'\ndebug = False\ncuda: Optional[str] = " + cuda +
         "\nhip: Optional[str] = None\n";
}

TEST(Doctor, ChecksHaveNamesOfTheirOwn) {
  std::set<std::string> ids;
  for (const Check& check : all_checks()) EXPECT_TRUE(ids.insert(check.id).second) << check.id;
  // … and those that the schema tells.
  std::ifstream file(GPUBUSY_TEST_DATA "/../docs/schema/doctor.schema.json");
  const auto schema = nlohmann::json::parse(file);
  const auto& properties = schema["properties"]["checks"]["items"]["properties"];
  EXPECT_EQ(ids, properties["id"]["enum"].get<std::set<std::string>>());
}

TEST(Doctor, Library) {
  MadeUp u;
  expect(check_library(u.m), Status::kOk, "/opt/gpubusy/lib/libgpubusy.so");
  u.m.measured.library = "/opt/my tools/libgpubusy.so";
  expect(check_library(u.m), Status::kWarning, "my tools", "without these characters");
  u.m.measured.library_system->no_exec = true;
  expect(check_library(u.m), Status::kFailure, "noexec", "can be run");
  u.m.measured.library.clear();
  expect(check_library(u.m), Status::kFailure, "is not in ../lib", "cmake --install");
}

TEST(Doctor, Loading) {
  MadeUp u;
  expect(check_loading(u.m), Status::kOk, "version 0.1.0");
  u.m.measured.self_test.version = "0.0.9";
  expect(check_loading(u.m), Status::kFailure, "library 0.0.9, launcher 0.1.0", "one build");
  u.m.measured.self_test = {true, false, "",
                            "ERROR: ld.so: object 'x' from LD_PRELOAD cannot be preloaded"};
  expect(check_loading(u.m), Status::kFailure, "cannot be preloaded", "ld.so");
  u.m.measured.self_test = {};
  expect(check_loading(u.m), Status::kUnknown, "not tried");
}

TEST(Doctor, ExportsOfAnotherLibraryAreNotOurs) {
  MadeUp u;
  u.m.measured.library = std::filesystem::canonical("/proc/self/exe");
  expect(check_exports(u.m), Status::kFailure, "functions are missing, e.g. cudaLaunchKernel",
         "one build");
}

TEST(Doctor, Glibc) {
  MadeUp u;
  u.m.measured.library = std::filesystem::canonical("/proc/self/exe");
  expect(check_glibc(u.m), Status::kOk, "glibc 2.36 on x86_64; the library needs 2.");
  u.m.measured.glibc = {2, 1};
  expect(check_glibc(u.m), Status::kFailure, "glibc 2.1 on", "Build gpubusy on this system");
}

TEST(Doctor, Settings) {
  MadeUp u;
  expect(check_settings(u.m), Status::kOk, "no GPUBUSY_ variable");
  u.set("GPUBUSY_ACTIVE=10");
  u.set("GPUBUSY_SIM_DEVICES=2");
  expect(check_settings(u.m), Status::kOk, "GPUBUSY_ACTIVE=10");
  EXPECT_THAT(check_settings(u.m)->found, Not(HasSubstr("SIM")));
  u.m.settings_problem = "GPUBUSY_ACTVE: unknown";
  expect(check_settings(u.m), Status::kFailure, "GPUBUSY_ACTVE", "--help");
}

TEST(Doctor, Command) {
  MadeUp u;
  EXPECT_FALSE(check_command(u.m));
  u.m.command = {"train"};
  expect(check_command(u.m), Status::kFailure, "'train' is not in PATH", "path");
  u.m.measured.program = "/bin/train";
  u.m.measured.preload = PreloadCheck{PreloadVerdict::kPossible, "", "/bin/python3"};
  expect(check_command(u.m), Status::kOk, "/bin/train, run by /bin/python3");
  u.m.measured.preload = PreloadCheck{PreloadVerdict::kIgnored, "/bin/train is set-user-ID", ""};
  expect(check_command(u.m), Status::kFailure, "set-user-ID", "copy that you own");
  u.m.measured.preload = PreloadCheck{PreloadVerdict::kHarmful, "/bin/train uses musl", ""};
  expect(check_command(u.m), Status::kFailure, "musl", "gpubusy that");
}

TEST(Doctor, PlaceInTheCommand) {
  struct Case {
    std::vector<std::string> command;
    Status status;
    const char* cure;
  };
  const Case kCases[] = {
      {{"ssh", "host", "python"}, Status::kFailure, "ssh HOST gpubusy"},
      {{"/usr/bin/sudo", "python"}, Status::kFailure, "sudo gpubusy"},
      {{"docker", "run", "x"}, Status::kFailure, "docker run --gpus all"},
      {{"env", "-i", "python"}, Status::kFailure, "env -i NAME=VALUE... gpubusy"},
      {{"srun", "-n4", "python"}, Status::kWarning, "srun ... gpubusy"},
      {{"mpirun", "-n", "4", "python"}, Status::kWarning, "mpirun ... gpubusy"},
      {{"torchrun", "train.py"}, Status::kOk, ""},
      {{"accelerate", "launch", "train.py"}, Status::kOk, ""},
      {{"conda", "run", "python"}, Status::kOk, ""},
      {{"uv", "run", "python"}, Status::kOk, ""},
      {{"poetry", "run", "python"}, Status::kOk, ""},
  };
  for (const Case& c : kCases) {
    MadeUp u;
    u.m.command = c.command;
    expect(check_place(u.m), c.status, "", c.cure);
  }
  MadeUp u;
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"python"}, {"uv", "pip"}, {"env", "A=1", "python"}, {}}) {
    u.m.command = command;
    EXPECT_FALSE(check_place(u.m));
  }
}

TEST(Doctor, Python) {
  for (const auto& [version, status] : {std::pair{"3.11", Status::kOk},
                                        {"3.8", Status::kOk},
                                        {"3.14", Status::kOk},
                                        {"3.7", Status::kWarning},
                                        {"3.15", Status::kWarning},
                                        {"3.13t", Status::kWarning}}) {
    MadeUp u;
    u.python(version, "");
    std::string number(version);
    if (number.ends_with('t')) number.pop_back();
    expect(check_python(u.m), status, number, status == Status::kOk ? "" : "CPython 3.8 to 3.14");
  }
  MadeUp u;
  u.python("3.13t", "");
  EXPECT_THAT(check_python(u.m)->found, HasSubstr("free-threaded"));
  u.m.measured.program = "/bin/ls";
  u.m.measured.preload = PreloadCheck{PreloadVerdict::kPossible, "", "/bin/ls"};
  u.m.command = {"/bin/ls"};
  EXPECT_FALSE(check_python(u.m));
}

TEST(Doctor, PythonOfAVenvIsThatOfItsFolder) {
  MadeUp u;
  u.file("/usr/bin/python3.12", "");
  u.link("/venv/bin/python", u.m.root + "/usr/bin/python3.12");
  u.file("/venv/pyvenv.cfg", "home = /usr/bin\ninclude-system-site-packages = false\n");
  u.m.command = {"/venv/bin/python"};
  u.m.measured.program = "/venv/bin/python";
  auto python = python_of(u.m);
  ASSERT_TRUE(python);
  EXPECT_EQ(python->kind, "venv");
  EXPECT_EQ(python->minor, 12);
  EXPECT_THAT(python->folders, ::testing::ElementsAre("/venv/lib/python3.12/site-packages"));
  u.file("/venv/pyvenv.cfg", "include-system-site-packages = true\n");
  EXPECT_THAT(python_of(u.m)->folders, ::testing::Contains("/usr/lib/python3/dist-packages"));
}

TEST(Doctor, PythonBehindAShimOfPyenv) {
  MadeUp u;
  u.file("/home/pyenv/shims/python", "#!/usr/bin/env bash\n");
  u.file("/home/pyenv/versions/3.10.4/bin/python3.10", "");
  u.link("/home/pyenv/versions/3.10.4/bin/python", "python3.10");
  u.file("/home/pyenv/version", "3.10.4\n");
  const auto python = python_at(u.m, "/home/pyenv/shims/python");
  ASSERT_TRUE(python);
  EXPECT_EQ(python->minor, 10);
  EXPECT_EQ(python->prefix, "/home/pyenv/versions/3.10.4");
}

TEST(Doctor, Torch) {
  MadeUp u;
  u.python("3.11", torch_text("2.6.0+cu124", "'12.4'"));
  expect(check_torch(u.m), Status::kOk, "2.6.0+cu124, CUDA 12.4");
  MadeUp none;
  none.python("3.11", "");
  expect(check_torch(none.m), Status::kUnknown, "not found");
  MadeUp cpu;
  cpu.python("3.11", torch_text("2.6.0+cpu", "None"));
  expect(check_torch(cpu.m), Status::kFailure, "a build without CUDA", "CUDA build");
  MadeUp amd;
  amd.python("3.11", "__version__ = '2.6.0+rocm6.2'\ncuda = None\nhip = '6.2.41133'\n");
  expect(check_torch(amd.m), Status::kFailure, "ROCm 6.2", "CUDA build");
}

TEST(Doctor, SimulatorIsNamedAndNeedsNoDriver) {
  MadeUp u;
  EXPECT_FALSE(check_device(u.m));
  u.remove("/proc/driver");
  u.set("LD_PRELOAD=/x/lib/libgpubusy_sim.so:/x/lib/gpubusy-sim/libcupti.so.13");
  expect(check_device(u.m), Status::kOk, "simulated");
  EXPECT_FALSE(check_driver(u.m));
  EXPECT_FALSE(check_device_files(u.m));
  expect(check_cupti(u.m), Status::kOk, "/x/lib/gpubusy-sim/libcupti.so.13");
  EXPECT_FALSE(check_other_preloads(u.m));
}

TEST(Doctor, Driver) {
  MadeUp u;
  expect(check_driver(u.m), Status::kOk, "550.54.15");
  u.file("/proc/driver/nvidia/version", kOpenModule570);
  u.file("/proc/driver/nvidia/capabilities/gpu0/mig/gi1/access", "");
  expect(check_driver(u.m), Status::kOk, "570.86.15, 1 MIG instances");
  u.remove("/proc/driver");
  expect(check_driver(u.m), Status::kFailure, "not loaded", "gpubusy-sim");
  u.file("/dev/dxg", "");
  expect(check_driver(u.m), Status::kOk, "WSL");
}

TEST(Doctor, DriverLibrary) {
  MadeUp u;
  expect(check_driver_library(u.m), Status::kOk, "/usr/lib64/libcuda.so.1, version 550.54.15");
  u.file("/proc/driver/nvidia/version", kOpenModule570);
  expect(check_driver_library(u.m), Status::kFailure, "the kernel module is 570.86.15", "reboot");
  u.file("/toolkit/stubs/libcuda.so.1", "");
  u.set("LD_LIBRARY_PATH=/nowhere:/toolkit/stubs");
  expect(check_driver_library(u.m), Status::kFailure, "stub", "LD_LIBRARY_PATH");
  u.m.environment.clear();
  u.remove("/usr/lib64");
  expect(check_driver_library(u.m), Status::kFailure, "no directory", "--gpus all");
  u.file("/usr/lib/wsl/lib/libcuda.so.1", "");
  expect(check_driver_library(u.m), Status::kOk, "/usr/lib/wsl/lib");
}

// The new format of ld.so.cache, written by hand.
TEST(Doctor, LibrariesAreFoundByTheLoadersCache) {
  MadeUp u;
  u.remove("/usr/lib64");
  u.file("/odd/place/libcuda.so.1", "");
  std::string cache("glibc-ld.so.cache1.1");
  const auto number = [&](std::uint32_t n) {
    cache.append(reinterpret_cast<const char*>(&n), sizeof n);
  };
  number(2);
  number(100);
  cache.resize(48);
  const std::uint32_t strings = 48 + 2 * 24;
#if defined(__aarch64__)
  const std::uint32_t own = 0x0a03;
#else
  const std::uint32_t own = 0x0303;
#endif
  for (const auto& [flags, value] : {std::pair{0x0803u, 13u}, std::pair{own, 23u}}) {
    number(flags);
    number(strings);
    number(strings + value);
    number(0);
    number(0);
    number(0);
  }
  cache += std::string("libcuda.so.1\0/no/lib32\0/odd/place/libcuda.so.1\0", 47);
  u.file("/etc/ld.so.cache", cache);
  EXPECT_EQ(u.m.find_shared_library("libcuda.so.1"), "/odd/place/libcuda.so.1");
  EXPECT_EQ(u.m.find_shared_library("libcudart.so.1"), "");
  for (std::size_t size = 0; size < cache.size(); ++size) {  // damaged ones do no harm
    u.file("/etc/ld.so.cache", cache.substr(0, size));
    EXPECT_THAT(u.m.find_shared_library("libcuda.so.1"), ::testing::AnyOf("", HasSubstr("/odd")));
  }
}

TEST(Doctor, DeviceFiles) {
  MadeUp u;
  expect(check_device_files(u.m), Status::kOk, "1 GPU");
  u.remove("/dev/nvidia-uvm");
  expect(check_device_files(u.m), Status::kWarning, "/dev/nvidia-uvm", "nvidia-modprobe");
  u.remove("/dev/nvidia0");
  expect(check_device_files(u.m), Status::kFailure, "no /dev/nvidia0", "--gpus all");
  if (geteuid() != 0) {
    u.file("/dev/nvidia0", "");
    chmod((u.m.root + "/dev/nvidia0").c_str(), 0);
    expect(check_device_files(u.m), Status::kFailure, "cannot be opened", "group");
  }
}

TEST(Doctor, VisibleDevices) {
  MadeUp u;
  EXPECT_FALSE(check_visible_devices(u.m));
  const auto with = [&](const std::string& value) {
    u.m.environment = {"CUDA_VISIBLE_DEVICES=" + value};
    return check_visible_devices(u.m);
  };
  expect(with("0"), Status::kOk, "=0");
  expect(with("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"), Status::kOk, "GPU-");
  expect(with("MIG-GPU-8932f937/1/0"), Status::kOk, "MIG-");
  expect(with(""), Status::kFailure, "CUDA_VISIBLE_DEVICES=", "Unset");
  expect(with("-1"), Status::kFailure, "-1", "Unset");
  expect(with("0,4"), Status::kWarning, "there are 1 GPUs", "numbered from 0");
  expect(with("0;1"), Status::kWarning, "'0;1' is no GPU", "commas");
  u.remove("/dev");
  u.m.environment = {"NVIDIA_VISIBLE_DEVICES=void"};
  expect(check_visible_devices(u.m), Status::kWarning, "void", "--gpus all");
}

TEST(Doctor, DriverForTorch) {
  MadeUp u;
  EXPECT_FALSE(check_driver_for_torch(u.m));
  u.python("3.11", torch_text("2.6.0+cu124", "'12.4'"));
  expect(check_driver_for_torch(u.m), Status::kOk, "needs 525.60.13");
  MadeUp old;
  old.python("3.11", torch_text("2.13.0+cu130", "'13.0'"));
  expect(check_driver_for_torch(old.m), Status::kFailure, "driver 550.54.15, PyTorch for CUDA 13.0",
         "CUDA 12 or older");
  MadeUp later;
  later.python("3.11", torch_text("9.9", "'19.0'"));
  expect(check_driver_for_torch(later.m), Status::kUnknown, "CUDA 19.0");
}

TEST(Doctor, Cupti) {
  MadeUp u;
  expect(check_cupti(u.m), Status::kOk, "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.12");
  u.python("3.11", torch_text("2.6.0+cu124", "'12.4'"));
  u.file("/env/lib/python3.11/site-packages/nvidia/cuda_cupti/lib/libcupti.so.12", "");
  expect(check_cupti(u.m), Status::kOk, "site-packages/nvidia/cuda_cupti/lib/libcupti.so.12");
  MadeUp none;
  none.remove("/usr/local/cuda");
  expect(check_cupti(none.m), Status::kWarning, "no libcupti", "nvidia-cuda-cupti");
  none.m.config.device_time_kind = config::DeviceTimeKind::kCupti;
  expect(check_cupti(none.m), Status::kFailure, "no libcupti", "toolkit");
  none.m.config.device_time_kind = config::DeviceTimeKind::kEvents;
  expect(check_cupti(none.m), Status::kOk, "not used");
  std::strcpy(u.m.config.cupti, "/no/libcupti.so");
  expect(check_cupti(u.m), Status::kWarning, "'/no/libcupti.so' is not there", "toolkit");
}

TEST(Doctor, ProfilingRightsAreOnlyAboutCounters) {
  MadeUp u;
  expect(check_profiling_rights(u.m), Status::kOk, "RmProfilingAdminOnly: 1");
  EXPECT_THAT(check_profiling_rights(u.m)->why, HasSubstr("not restricted"));
  u.file("/proc/driver/nvidia/params", "RmProfilingAdminOnly: 0\n");
  expect(check_profiling_rights(u.m), Status::kOk, "open to all");
}

TEST(Doctor, OtherTools) {
  MadeUp u;
  expect(check_other_tools(u.m), Status::kOk, "none");
  u.set("NVTX_INJECTION64_PATH=/opt/nsys/libToolsInjection64.so");
  expect(check_other_tools(u.m), Status::kWarning, "NVTX_INJECTION64_PATH", "Unset");
  u.set("CUDA_INJECTION64_PATH=/opt/tool.so");
  expect(check_other_tools(u.m), Status::kWarning, "CUDA_INJECTION64_PATH=/opt/tool.so",
         "without the other tool");
}

TEST(Doctor, OtherPreloads) {
  MadeUp u;
  EXPECT_FALSE(check_other_preloads(u.m));
  u.file("/usr/lib/libjemalloc.so.2", "");
  u.m.environment = {"LD_PRELOAD=/usr/lib/libjemalloc.so.2"};
  expect(check_other_preloads(u.m), Status::kOk, "libjemalloc");
  u.m.environment = {"LD_PRELOAD=/usr/lib/libjemalloc.so.2 /gone/libx.so"};
  expect(check_other_preloads(u.m), Status::kWarning, "/gone/libx.so in LD_PRELOAD is not there",
         "out of LD_PRELOAD");
  u.file("/usr/local/vgpu/libvgpu.so", "");
  u.m.environment = {"LD_PRELOAD=/usr/local/vgpu/libvgpu.so"};
  expect(check_other_preloads(u.m), Status::kWarning, "libvgpu", "run without it");
  u.m.environment = {"LD_PRELOAD=libasan.so.8"};
  expect(check_other_preloads(u.m), Status::kOk, "AddressSanitizer");
}

TEST(Doctor, LoaderVariables) {
  MadeUp u;
  EXPECT_FALSE(check_loader_variables(u.m));
  u.m.environment = {"LD_BIND_NOW=1"};
  expect(check_loader_variables(u.m), Status::kOk, "LD_BIND_NOW=1");
  u.m.environment = {"GLIBC_TUNABLES=glibc.cpu.x86_shstk=on"};
  expect(check_loader_variables(u.m), Status::kUnknown, "x86_shstk");
  u.m.environment = {"LD_AUDIT=/x.so"};
  expect(check_loader_variables(u.m), Status::kWarning, "LD_AUDIT=/x.so", "Unset");
}

TEST(Doctor, SlowVariables) {
  MadeUp u;
  u.m.environment = {"CUDA_LAUNCH_BLOCKING=0"};
  EXPECT_FALSE(check_slow_variables(u.m));
  u.m.environment = {"CUDA_LAUNCH_BLOCKING=1"};
  expect(check_slow_variables(u.m), Status::kWarning, "CUDA_LAUNCH_BLOCKING=1", "Unset");
}

TEST(Doctor, Output) {
  MadeUp u;
  expect(check_output(u.m), Status::kOk, "100 GiB free, 256 MiB of them left");
  u.m.measured.output_system->kind = 0x6969;
  expect(check_output(u.m), Status::kWarning, "NFS", "local disk");
  u.m.measured.output_system->free_bytes = 700u << 20;
  expect(check_output(u.m), Status::kWarning, "700 MiB free", "lower --active");
  u.m.measured.output_system->free_bytes = 256u << 20;
  expect(check_output(u.m), Status::kFailure, "256 MiB free", "Make room");
  u.m.measured.output_problem = "cannot write in '/x': Permission denied";
  expect(check_output(u.m), Status::kFailure, "Permission denied", "-o DIR");
}

TEST(Doctor, Limits) {
  MadeUp u;
  expect(check_limits(u.m), Status::kOk, "file size unlimited");
  u.m.measured.open_files_limit = 20;
  expect(check_limits(u.m), Status::kWarning, "open files 20", "ulimit -n");
  u.m.measured.file_size_limit = 100u << 20;
  expect(check_limits(u.m), Status::kWarning, "file size 100 MiB", "ulimit -f");
  u.m.measured.file_size_limit = 512;
  expect(check_limits(u.m), Status::kFailure, "512 bytes", "ulimit -f");
}

TEST(Doctor, MemoryLimitOfEitherVersionOfControlGroups) {
  MadeUp u;
  EXPECT_FALSE(check_memory(u.m));
  u.file("/proc/self/cgroup", "0::/a/b\n");
  u.file("/sys/fs/cgroup/a/b/memory.max", "max\n");
  EXPECT_FALSE(check_memory(u.m));
  u.file("/sys/fs/cgroup/a/memory.max", "17179869184\n");
  expect(check_memory(u.m), Status::kOk, "16 GiB");
  u.file("/proc/self/cgroup", "4:memory:/job\n0::/\n");
  u.file("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "134217728\n");
  expect(check_memory(u.m), Status::kWarning, "128 MiB", "--device-time events");
}

TEST(Doctor, Processors) {
  MadeUp u;
  expect(check_processors(u.m), Status::kOk, "8 of 8");
  u.m.measured.usable_processors = 2;
  expect(check_processors(u.m), Status::kWarning, "2 of 8 usable", "num_workers=2");
  u.m.measured.usable_processors = 8;
  u.file("/proc/self/cgroup", "0::/a\n");
  u.file("/sys/fs/cgroup/a/cpu.max", "350000 100000\n");
  expect(check_processors(u.m), Status::kWarning, "a quota of 3.5", "num_workers=3");
  u.remove("/sys/fs/cgroup/a");
  u.file("/proc/self/cgroup", "3:cpu,cpuacct:/\n");
  u.file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  u.file("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  expect(check_processors(u.m), Status::kOk, "8 of 8");
  u.file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "400000\n");
  expect(check_processors(u.m), Status::kWarning, "a quota of 4.0", "num_workers=4");
}

TEST(Doctor, SharedMemory) {
  MadeUp u;
  expect(check_shared_memory(u.m), Status::kOk, "8192 MiB");
  u.m.measured.shared_memory->free_bytes = u.m.measured.shared_memory->total_bytes = 64u << 20;
  expect(check_shared_memory(u.m), Status::kWarning, "64 MiB", "--shm-size");
  u.m.measured.shared_memory.reset();
  expect(check_shared_memory(u.m), Status::kWarning, "not there", "/dev/shm");
}

TEST(Doctor, KernelAndClock) {
  MadeUp u;
  expect(check_own_memory(u.m), Status::kOk, "allowed");
  u.m.measured.reads_own_memory = false;
  expect(check_own_memory(u.m), Status::kWarning, "refused", "seccomp");
  expect(check_proc(u.m), Status::kOk, "mounted");
  u.file("/proc/self/mounts", "proc /proc proc rw,nosuid,hidepid=2 0 0\n");
  expect(check_proc(u.m), Status::kOk, "mounted, hidepid=2");
  u.remove("/proc/self");
  expect(check_proc(u.m), Status::kWarning, "not mounted", "Mount /proc");
  expect(check_clock(u.m), Status::kOk, "tsc, 20 ns");
  u.m.measured.clock_ns = 900;
  u.file("/sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n");
  expect(check_clock(u.m), Status::kWarning, "hpet, 900 ns", "clocksource=tsc");
}

TEST(Doctor, ContainersSchedulersSecurity) {
  MadeUp u;
  EXPECT_FALSE(check_container(u.m));
  EXPECT_FALSE(check_scheduler(u.m));
  EXPECT_FALSE(check_security(u.m));
  u.file("/.dockerenv", "");
  u.file("/proc/self/status", "Name:\tx\nSeccomp:\t2\n");
  u.set("KUBERNETES_SERVICE_HOST=10.0.0.1");
  expect(check_container(u.m), Status::kOk, "docker, Kubernetes, with a seccomp filter");
  u.set("SLURM_JOB_ID=77");
  expect(check_scheduler(u.m), Status::kOk, "Slurm job 77");
  u.set("SLURM_EXPORT_ENV=NONE");
  expect(check_scheduler(u.m), Status::kWarning, "SLURM_EXPORT_ENV=NONE", "srun gpubusy");
  u.file("/proc/self/attr/current", "docker-default (enforce)\n");
  expect(check_security(u.m), Status::kOk, "AppArmor: docker-default");
  u.file("/sys/fs/selinux/enforce", "1");
  expect(check_security(u.m), Status::kOk, "SELinux enforces");
}

TEST(Doctor, HostNameThatIsNotAscii) {
  MadeUp u;
  EXPECT_FALSE(check_host_name(u.m));
  u.m.measured.host =
      "k\xc3\xbc"
      "che";
  expect(check_host_name(u.m), Status::kOk,
         "k\xc3\xbc"
         "che");
}

// ---- texts
// ---------------------------------------------------------------------------------------

TEST(Doctor, OneFailureMeansNoRecording) {
  MadeUp u;
  u.m.measured.library = "";
  auto results = examine(u.m);
  EXPECT_FALSE(will_record(results));
  for (Result& r : results) {
    if (r.outcome.status == Status::kFailure) r.outcome.status = Status::kWarning;
  }
  EXPECT_TRUE(will_record(results));
}

TEST(DoctorText, FitsTheWidthAndIsAsciiWhereAsked) {
  const std::vector<Result> results = {
      {"a", "first", {Status::kOk, "fine", "", ""}},
      {"b",
       "second",
       {Status::kFailure, "bad \x1b[2J value", std::string(200, 'w') + " end",
        "do this or that and then that again, until it is well and all is good"}}};
  const std::string text = render_text(results, {.width = 70, .ascii = true});
  for (const char c : text) {
    ASSERT_TRUE((c >= 0x20 && c < 0x7f) || c == '\n') << text;
  }
  EXPECT_THAT(text, HasSubstr("XX second"));
  EXPECT_THAT(text,
              HasSubstr("A recording will not work here (1 failure, 0 warnings, 0 not known)."));
  EXPECT_THAT(render_text(results, {.colour = true}), HasSubstr("\x1b[1;31m\xe2\x9c\x97\x1b[0m"));
}

TEST(DoctorJson, IsStrictWhateverTheValues) {
  const std::vector<Result> results = {
      {"a", "first", {Status::kUnknown, "quote \" and \xff byte", "tab\there", ""}},
      {"b", "second", {Status::kWarning, "x", "why", "cure"}}};
  const auto json = nlohmann::json::parse(render_json(results, "0.1.0"));
  EXPECT_EQ(json["schema"], 1);
  EXPECT_EQ(json["version"], "0.1.0");
  EXPECT_EQ(json["will_record"], true);
  EXPECT_EQ(json["checks"][0]["status"], "not known");
  EXPECT_EQ(json["checks"][0]["found"], "quote \" and \xef\xbf\xbd byte");
  EXPECT_EQ(json["checks"][1]["id"], "b");
  EXPECT_EQ(json["checks"][1]["cure"], "cure");
}

}  // namespace
}  // namespace gpubusy::launcher::doctor
