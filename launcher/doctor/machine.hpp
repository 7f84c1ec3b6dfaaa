// SPDX-License-Identifier: Apache-2.0
//
// All that the doctor's checks look at: files below a root, an environment, and what was measured.
// Tests make one up; measure() fills in that of the machine it runs on. Reading changes nothing.
// Thread-safety: const functions may run in parallel.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/config.hpp"
#include "launcher/elf_file.hpp"
#include "launcher/preload_check.hpp"

namespace gpubusy::launcher::doctor {

inline constexpr std::uint64_t kNoLimit = ~std::uint64_t{0};

struct FileSystem {
  std::uint64_t free_bytes = 0, total_bytes = 0;
  long kind = 0;  // f_type of statfs
  bool no_exec = false;
};

// A child of this launcher, started with the library preloaded.
struct SelfTest {
  bool ran = false;
  bool loaded = false;
  std::string version;  // as the library itself told it
  std::string said;     // first line on standard error, ld.so's if it could not load
};

struct Measured {
  GlibcVersion glibc;
  std::string architecture;  // as uname has it
  std::string host;
  std::uint64_t file_size_limit = kNoLimit, open_files_limit = kNoLimit;
  unsigned online_processors = 0, usable_processors = 0;  // the latter by affinity
  bool reads_own_memory = false;                          // process_vm_readv
  bool reads_own_syscall = false;                         // /proc/self/task/TID/syscall
  double clock_ns = 0;                                    // one clock_gettime
  SelfTest self_test;
  std::string library;  // empty: not found
  std::optional<FileSystem> library_system, output_system, shared_memory;
  std::string output;                   // directory, as it will be made
  std::string output_problem;           // empty: can be written
  std::string program;                  // of the command, as found; empty: there is none
  std::optional<PreloadCheck> preload;  // of the command
};

struct Machine {
  std::string root;                      // in front of every path; empty: the real one
  std::vector<std::string> environment;  // NAME=value
  std::vector<std::string> command;      // empty: none given
  config::Config config{};
  std::string settings_problem;  // of the GPUBUSY_ variables and options
  std::string launcher_version;
  Measured measured;

  std::optional<std::string> variable(std::string_view name) const;
  std::vector<std::string> variables_from(std::string_view prefix) const;  // NAME=value

  // Up to 1 MiB of a file; nothing: it cannot be read.
  std::optional<std::string> read(const std::string& path) const;
  std::vector<std::string> list(const std::string& directory) const;  // names, sorted
  bool exists(const std::string& path) const;
  bool can_use(const std::string& path) const;         // to read and write
  std::string resolve(const std::string& path) const;  // without links; empty: not there

  // Where ld.so would find a library of this name, by LD_LIBRARY_PATH, its cache and its own
  // directories; empty: nowhere.
  std::string find_shared_library(const std::string& name) const;
};

// The machine this runs on.
Machine measure(const std::vector<std::string>& command, const char* const* environment,
                const config::Config& config, bool has_output);

}  // namespace gpubusy::launcher::doctor
