// SPDX-License-Identifier: Apache-2.0
//
// What the doctor measures on the machine it runs on: system calls, and one child.
#include <fcntl.h>
#include <fmt/format.h>
#include <gnu/libc-version.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "host/processors.hpp"
#include "launcher/doctor/machine.hpp"
#include "launcher/environment.hpp"
#include "launcher/output_directory.hpp"
#include "launcher/self_test.hpp"
#include "recording/check_in.hpp"

namespace gpubusy::launcher::doctor {
namespace {

constexpr int kSelfTestMs = 1500;

std::optional<FileSystem> file_system_of(const std::string& path) {
  struct statvfs info {};
  struct statfs kind {};
  if (statvfs(path.c_str(), &info) != 0 || statfs(path.c_str(), &kind) != 0) return std::nullopt;
  return FileSystem{std::uint64_t{info.f_bavail} * info.f_frsize,
                    std::uint64_t{info.f_blocks} * info.f_frsize, static_cast<long>(kind.f_type),
                    (info.f_flag & ST_NOEXEC) != 0};
}

std::uint64_t limit_of(int resource) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0 ||
      limit.rlim_cur == RLIM_INFINITY) {
    return kNoLimit;
  }
  return limit.rlim_cur;
}

bool reads_own_memory() {
  int from = 42, to = 0;
  const iovec local{&to, sizeof to}, remote{&from, sizeof from};
  return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == sizeof to && to == 42;
}

bool reads_own_syscall() {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/self/task/%ld/syscall", syscall(SYS_gettid));
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  char text[64];
  const ssize_t n = ::read(fd, text, sizeof text);
  close(fd);
  return n > 0;
}

// The least of some rounds: what the clock costs where nothing disturbs.
double clock_cost_ns() {
  constexpr int kRounds = 8, kCalls = 2000;
  double least = 1e9;
  timespec first{}, last{};
  for (int round = 0; round < kRounds; ++round) {
    clock_gettime(CLOCK_MONOTONIC, &first);
    for (int i = 0; i < kCalls; ++i) clock_gettime(CLOCK_MONOTONIC, &last);
    const double ns = static_cast<double>(last.tv_sec - first.tv_sec) * 1e9 +
                      static_cast<double>(last.tv_nsec - first.tv_nsec);
    least = std::min(least, ns / kCalls);
  }
  return least;
}

std::string read_until(int fd, pid_t child) {
  std::string text;
  timespec start{};
  clock_gettime(CLOCK_MONOTONIC, &start);
  while (true) {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    const long spent = (now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1000000;
    pollfd wait{fd, POLLIN, 0};
    if (spent >= kSelfTestMs || poll(&wait, 1, static_cast<int>(kSelfTestMs - spent)) <= 0) {
      kill(child, SIGKILL);
      break;
    }
    char part[1024];
    const ssize_t n = ::read(fd, part, sizeof part);
    if (n <= 0) break;
    text.append(part, static_cast<std::size_t>(n));
  }
  return text;
}

// Starts this launcher once more, to end at once, and looks whether the library checked in.
SelfTest run_self_test(const std::string& library, const char* const* environment) {
  SelfTest test;
  const int file = memfd_create("gpubusy-check-in", 0);
  int errors[2] = {-1, -1};
  if (file < 0 || pipe2(errors, O_CLOEXEC) != 0) {
    if (file >= 0) close(file);
    return test;
  }
  std::vector<std::pair<std::string, std::string>> changes = {
      {"LD_PRELOAD", merge_preload(library, getenv("LD_PRELOAD"))},
      {"ASAN_OPTIONS", merge_asan_options(getenv("ASAN_OPTIONS"))},
      {recording::kCheckInVariable, fmt::format("/proc/self/fd/{}", file)},
      {kSelfTestVariable, "1"}};
  std::vector<std::string> words;
  // Settings may be what is wrong; that is told apart from whether the library can be loaded.
  for (std::string& word : change_environment(environment, changes)) {
    const bool setting = word.starts_with("GPUBUSY_") &&
                         !word.starts_with(recording::kCheckInVariable) &&
                         !word.starts_with(kSelfTestVariable) && !word.starts_with("GPUBUSY_SIM_");
    if (!setting) words.push_back(std::move(word));
  }
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  char name[] = "gpubusy";
  char* arguments[] = {name, nullptr};

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, errors[1], STDERR_FILENO);
  pid_t child = -1;
  const int error =
      posix_spawn(&child, "/proc/self/exe", &actions, nullptr, arguments, pointers.data());
  posix_spawn_file_actions_destroy(&actions);
  close(errors[1]);
  if (error == 0) {
    test.ran = true;
    const std::string said = read_until(errors[0], child);
    test.said = said.substr(0, said.find('\n'));
    while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
    }
    recording::CheckIn record{};
    if (pread(file, &record, sizeof record, 0) == sizeof record &&
        std::memcmp(record.magic, recording::kCheckInMagic, sizeof record.magic) == 0) {
      test.loaded = true;
      test.version.assign(record.library_version,
                          strnlen(record.library_version, sizeof record.library_version));
    }
  }
  close(errors[0]);
  close(file);
  return test;
}

void measure_output(const config::Config& config, bool has_output, Measured& out) {
  std::error_code error;
  std::filesystem::path folder = ".";
  if (has_output) {
    char expanded[config::kTextMax];
    config::Problem problem{};
    if (!config::expand_output(config.output, expanded, sizeof expanded, problem)) {
      out.output_problem = problem.text;
      return;
    }
    folder = expanded;
  }
  out.output = has_output ? folder.string() : "a new directory here";
  // What is missing will be made in the innermost directory that is there.
  while (has_output && !std::filesystem::exists(folder, error)) {
    folder = folder.has_parent_path() ? folder.parent_path() : std::filesystem::path(".");
  }
  if (!std::filesystem::is_directory(folder, error)) {
    out.output_problem = fmt::format("'{}' is not a directory", folder.string());
  } else if (access(folder.c_str(), W_OK | X_OK) != 0) {
    out.output_problem = fmt::format("cannot write in '{}': {}", folder.string(),
                                     std::generic_category().message(errno));
  }
  out.output_system = file_system_of(folder.string());
}

}  // namespace

Machine measure(const std::vector<std::string>& command, const char* const* environment,
                const config::Config& config, bool has_output) {
  Machine m;
  for (const char* const* e = environment; e != nullptr && *e != nullptr; ++e) {
    m.environment.emplace_back(*e);
  }
  m.command = command;
  m.config = config;
  Measured& out = m.measured;
  std::sscanf(gnu_get_libc_version(), "%u.%u", &out.glibc.major, &out.glibc.minor);
  utsname name{};
  if (uname(&name) == 0) {
    out.architecture = name.machine;
    out.host = name.nodename;
  }
  out.file_size_limit = limit_of(RLIMIT_FSIZE);
  out.open_files_limit = limit_of(RLIMIT_NOFILE);
  const host::Processors processors = host::processors("");
  out.online_processors = processors.online;
  out.usable_processors = processors.usable;
  out.reads_own_memory = reads_own_memory();
  out.reads_own_syscall = reads_own_syscall();
  out.clock_ns = clock_cost_ns();
  out.library = find_library();
  if (!out.library.empty()) {
    out.library_system = file_system_of(out.library);
    if (is_preload_safe(out.library)) out.self_test = run_self_test(out.library, environment);
  }
  measure_output(config, has_output, out);
  out.shared_memory = file_system_of("/dev/shm");
  if (!command.empty()) {
    out.program = find_program(command[0]);
    if (!out.program.empty()) out.preload = check_preload(command, out.library);
  }
  return m;
}

}  // namespace gpubusy::launcher::doctor
