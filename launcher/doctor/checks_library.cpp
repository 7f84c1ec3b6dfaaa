// SPDX-License-Identifier: Apache-2.0
//
// The library itself: is it there, can it be loaded, is it whole.
#include <fmt/format.h>

#include <set>

#include "launcher/doctor/checks.hpp"
#include "launcher/environment.hpp"
#include "launcher/hook_names.hpp"

namespace gpubusy::launcher::doctor {

std::optional<Outcome> check_library(const Machine& m) {
  const std::string& path = m.measured.library;
  const std::string cure =
      "Install launcher and library together: cmake --install BUILD --prefix DIR";
  if (path.empty()) {
    return Outcome{Status::kFailure, "libgpubusy.so is not in ../lib or beside the launcher",
                   "It is what watches the CUDA calls.", cure};
  }
  if (m.measured.library_system && m.measured.library_system->no_exec) {
    return Outcome{Status::kFailure, path + " lies on a file system mounted noexec",
                   "No program can load a library from there.",
                   "Install gpubusy in a directory from which programs can be run."};
  }
  if (!is_preload_safe(path)) {
    return Outcome{Status::kWarning, path,
                   "LD_PRELOAD cannot name a path with a space, a colon or $: a link to it is made "
                   "in XDG_RUNTIME_DIR, TMPDIR, /tmp or /var/tmp for each run.",
                   "Install it under a path without these characters."};
  }
  return Outcome{Status::kOk, path, "", ""};
}

std::optional<Outcome> check_loading(const Machine& m) {
  if (m.measured.library.empty()) return std::nullopt;
  const SelfTest& test = m.measured.self_test;
  if (!test.ran) {
    return Outcome{Status::kUnknown, "not tried", "A child could not be started to see it.", ""};
  }
  if (!test.loaded) {
    return Outcome{
        Status::kFailure,
        test.said.empty() ? "a child with LD_PRELOAD did not load the library" : test.said,
        "ld.so runs a program without the library then, and nothing is recorded.",
        "See the line of ld.so: usually another C library, another architecture, or a security "
        "policy that forbids LD_PRELOAD."};
  }
  if (test.version != m.launcher_version) {
    return Outcome{Status::kFailure,
                   fmt::format("library {}, launcher {}",
                               test.version.empty() ? "of an older version" : test.version,
                               m.launcher_version),
                   "The launcher may not understand what another version writes.",
                   "Install both from one build."};
  }
  return Outcome{Status::kOk, fmt::format("version {}, as the launcher", test.version), "", ""};
}

std::optional<Outcome> check_exports(const Machine& m) {
  if (m.measured.library.empty()) return std::nullopt;
  const std::vector<std::string> names = exported_names(m.measured.library);
  const std::set<std::string> exported(names.begin(), names.end());
  std::string first;
  std::size_t missing = 0;
  for (const HookName& hook : hook_names()) {
    if (exported.contains(hook.name)) continue;
    if (missing++ == 0) first = hook.name;
  }
  for (const char* name : {"dlsym", "dlvsym", "dlclose", "InitializeInjectionNvtx2"}) {
    if (exported.contains(name)) continue;
    if (missing++ == 0) first = name;
  }
  if (missing > 0) {
    return Outcome{
        Status::kFailure,
        fmt::format("{} of the library's functions are missing, e.g. {}", missing, first),
        "Calls of these are not seen.",
        "Install launcher and library from one build, and do not strip dynamic symbols."};
  }
  return Outcome{Status::kOk, fmt::format("all {} exported", hook_names().size()), "", ""};
}

std::optional<Outcome> check_glibc(const Machine& m) {
  const GlibcVersion have = m.measured.glibc;
  const auto ours = read_elf(m.measured.library);
  if (!ours) return std::nullopt;
  const std::string text =
      fmt::format("glibc {}.{} on {}; the library needs {}.{}", have.major, have.minor,
                  m.measured.architecture, ours->needs_glibc.major, ours->needs_glibc.minor);
  if (have < ours->needs_glibc) {
    return Outcome{Status::kFailure, text, "ld.so refuses the library in every program.",
                   "Build gpubusy on this system, or on one with an older glibc."};
  }
  return Outcome{Status::kOk, text, "", ""};
}

std::optional<Outcome> check_settings(const Machine& m) {
  if (!m.settings_problem.empty()) {
    return Outcome{Status::kFailure, m.settings_problem,
                   "With a wrong setting the launcher refuses to start, and the library alone "
                   "records nothing.",
                   "Correct it, or unset the variable; `gpubusy --help` lists all."};
  }
  std::string names;
  for (const std::string& entry : m.variables_from("GPUBUSY_")) {
    if (entry.starts_with("GPUBUSY_SIM_") || entry.starts_with("GPUBUSY_INTERNAL_")) continue;
    names += (names.empty() ? "" : ", ") + entry;
  }
  return Outcome{Status::kOk, names.empty() ? "no GPUBUSY_ variable is set" : names, "", ""};
}

}  // namespace gpubusy::launcher::doctor
