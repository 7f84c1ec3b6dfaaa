// SPDX-License-Identifier: Apache-2.0
#include "launcher/doctor/check.hpp"

#include <fmt/format.h>

#include "launcher/doctor/checks.hpp"

namespace gpubusy::launcher::doctor {

const std::vector<Check>& all_checks() {
  static const std::vector<Check> kChecks = {
      {"library", "library", check_library},
      {"loading", "loads into a child", check_loading},
      {"exports", "hooks", check_exports},
      {"glibc", "C library", check_glibc},
      {"settings", "settings", check_settings},
      {"command", "command", check_command},
      {"place", "place in the command", check_place},
      {"python", "Python", check_python},
      {"torch", "PyTorch", check_torch},
      {"device", "device", check_device},
      {"driver", "NVIDIA driver", check_driver},
      {"driver_library", "libcuda.so.1", check_driver_library},
      {"device_files", "device files", check_device_files},
      {"visible_devices", "visible devices", check_visible_devices},
      {"driver_for_torch", "driver for PyTorch", check_driver_for_torch},
      {"cupti", "CUPTI", check_cupti},
      {"profiling_rights", "profiling rights", check_profiling_rights},
      {"other_tools", "other tools", check_other_tools},
      {"other_preloads", "other preloads", check_other_preloads},
      {"loader_variables", "loader's variables", check_loader_variables},
      {"slow_variables", "variables that slow", check_slow_variables},
      {"output", "output directory", check_output},
      {"limits", "limits", check_limits},
      {"memory", "memory limit", check_memory},
      {"processors", "processors", check_processors},
      {"shared_memory", "/dev/shm", check_shared_memory},
      {"own_memory", "reading own memory", check_own_memory},
      {"proc", "/proc", check_proc},
      {"clock", "clock", check_clock},
      {"container", "container", check_container},
      {"scheduler", "batch scheduler", check_scheduler},
      {"security", "security module", check_security},
      {"host_name", "host name", check_host_name},
  };
  return kChecks;
}

std::vector<Result> examine(const Machine& machine) {
  std::vector<Result> results;
  for (const Check& check : all_checks()) {
    if (auto outcome = check.run(machine)) {
      results.push_back({check.id, check.title, std::move(*outcome)});
    }
  }
  return results;
}

bool will_record(const std::vector<Result>& results) {
  for (const Result& result : results) {
    if (result.outcome.status == Status::kFailure) return false;
  }
  return true;
}

const char* status_name(Status status) {
  switch (status) {
    case Status::kOk: return "ok";
    case Status::kWarning: return "warning";
    case Status::kFailure: return "failure";
    case Status::kUnknown: break;
  }
  return "not known";
}

std::string size_text(std::uint64_t bytes) {
  constexpr std::uint64_t kKi = 1024;
  if (bytes >= 10 * kKi * kKi * kKi) return fmt::format("{} GiB", bytes / (kKi * kKi * kKi));
  if (bytes >= 10 * kKi * kKi) return fmt::format("{} MiB", bytes / (kKi * kKi));
  if (bytes >= 10 * kKi) return fmt::format("{} KiB", bytes / kKi);
  return fmt::format("{} bytes", bytes);
}

}  // namespace gpubusy::launcher::doctor
