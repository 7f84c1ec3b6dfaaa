// SPDX-License-Identifier: Apache-2.0
#include "launcher/preload_check.hpp"

#include <fmt/format.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "launcher/elf_file.hpp"

namespace gpubusy::launcher {
namespace {

constexpr int kMaxScripts = 5;  // the kernel's own limit on #! lines that lead to scripts

std::string_view base_name(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return slash == path.npos ? path : path.substr(slash + 1);
}

bool is_executable_file(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && access(path.c_str(), X_OK) == 0;
}

// ld.so ignores the preload when the kernel set AT_SECURE at exec.
std::string secure_reason(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return {};
  if ((info.st_mode & S_ISUID) != 0 && info.st_uid != geteuid()) return "is set-user-ID";
  if ((info.st_mode & S_ISGID) != 0 && (info.st_mode & S_IXGRP) != 0 && info.st_gid != getegid()) {
    return "is set-group-ID";
  }
  if (geteuid() != 0 && getxattr(path.c_str(), "security.capability", nullptr, 0) > 0) {
    return "has file capabilities";
  }
  return {};
}

// The libc that the interpreter brings: next to it, as every distribution has them.
GlibcVersion glibc_of(const std::string& interpreter) {
  std::error_code error;
  const std::filesystem::path real = std::filesystem::canonical(interpreter, error);
  if (error) return {};
  const auto libc = read_elf((real.parent_path() / "libc.so.6").string());
  return libc ? libc->provides_glibc : GlibcVersion{};
}

PreloadCheck judge_elf(const std::string& path, const ElfFile& program,
                       const std::string& library) {
  const auto harmful = [&](std::string reason) {
    return PreloadCheck{PreloadVerdict::kHarmful, std::move(reason), path};
  };
  const auto ours = read_elf(library);
  if (!ours) return {};  // told elsewhere
  if (program.bits != ours->bits || program.machine != ours->machine || !program.little_endian) {
    return harmful(fmt::format("{} is a {}-bit {} program, libgpubusy.so is {}-bit {}", path,
                               program.bits, machine_name(program.machine), ours->bits,
                               machine_name(ours->machine)));
  }
  if (program.interpreter.empty()) {
    return {PreloadVerdict::kIgnored,
            fmt::format("{} is statically linked, so nothing can be preloaded", path), path};
  }
  if (base_name(program.interpreter).starts_with("ld-musl")) {
    return harmful(
        fmt::format("{} uses musl ({}), libgpubusy.so needs glibc", path, program.interpreter));
  }
  if (const std::string secure = secure_reason(path); !secure.empty()) {
    return {PreloadVerdict::kIgnored,
            fmt::format("{} {}, and ld.so preloads nothing from outside the system's folders then",
                        path, secure),
            path};
  }
  const GlibcVersion there = glibc_of(program.interpreter);
  if (there != GlibcVersion{} && there < ours->needs_glibc) {
    return harmful(fmt::format("{} runs on glibc {}.{}, libgpubusy.so needs {}.{}", path,
                               there.major, there.minor, ours->needs_glibc.major,
                               ours->needs_glibc.minor));
  }
  return {PreloadVerdict::kPossible, {}, path};
}

}  // namespace

std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  const char* variable = getenv("PATH");
  std::string_view path = variable != nullptr ? variable : "/bin:/usr/bin";
  while (true) {
    const std::size_t colon = path.find(':');
    const std::string_view folder = path.substr(0, colon);
    const std::string candidate = folder.empty() ? "./" + name : fmt::format("{}/{}", folder, name);
    if (is_executable_file(candidate)) return candidate;
    if (colon == path.npos) return {};
    path.remove_prefix(colon + 1);
  }
}

PreloadCheck check_preload(const std::vector<std::string>& command, const std::string& library) {
  std::string path = find_program(command[0]);
  std::string next_argument;
  for (int i = 0; i < kMaxScripts && !path.empty(); ++i) {
    if (const auto elf = read_elf(path)) return judge_elf(path, *elf, library);
    const auto shebang = read_shebang(path);
    if (!shebang) return {PreloadVerdict::kPossible, {}, path};  // execvp hands it to /bin/sh
    path = shebang->interpreter;
    // `#!/usr/bin/env python3`: env is only the way there.
    if (base_name(path) == "env" && !shebang->argument.empty() && shebang->argument[0] != '-' &&
        shebang->argument.find(' ') == std::string::npos) {
      const std::string found = find_program(shebang->argument);
      if (!found.empty()) path = found;
    }
  }
  return {PreloadVerdict::kPossible, {}, path};
}

std::string reason_in_words(const std::vector<std::string>& command) {
  const std::string_view name = base_name(command[0]);
  if (name == "env") {
    for (std::size_t i = 1; i < command.size() && command[i].starts_with('-'); ++i) {
      const std::string& word = command[i];
      if (word == "-" || word == "--ignore-environment" ||
          (!word.starts_with("--") && word.find('i') != std::string::npos)) {
        return fmt::format("`env {}` clears the environment, LD_PRELOAD with it", word);
      }
    }
    return {};
  }
  constexpr std::string_view kOwnEnvironment[] = {
      "sudo", "su",      "doas",        "runuser",   "docker",      "podman", "nerdctl",
      "ssh",  "kubectl", "singularity", "apptainer", "systemd-run", "sbatch", "at"};
  if (std::find(std::begin(kOwnEnvironment), std::end(kOwnEnvironment), name) !=
      std::end(kOwnEnvironment)) {
    return fmt::format(
        "{0} starts programs with an environment of their own: put gpubusy behind {0}, or set "
        "LD_PRELOAD and GPUBUSY_OUTPUT there",
        name);
  }
  return {};
}

}  // namespace gpubusy::launcher
