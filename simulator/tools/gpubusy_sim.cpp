// SPDX-License-Identifier: Apache-2.0
//
// gpubusy-sim: runs a program on the simulated device. Sets the environment and becomes the
// program, so that its process id, signals and exit code are the program's own.
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "simulator/core/kernel_table.hpp"
#include "simulator/core/parameters.hpp"

namespace {

using gpubusy::sim::environment_name;
using gpubusy::sim::ParameterInfo;

constexpr int kBadUsage = 2;
constexpr int kCannotRun = 126, kNotFound = 127;  // as a shell says it

void print_help() {
  puts(
      "usage: gpubusy-sim [options] [--] COMMAND [ARGUMENT...]\n"
      "\n"
      "Runs COMMAND on a simulated CUDA device: no GPU and no driver are needed. Time is "
      "modelled,\n"
      "values of kernels are not computed.\n"
      "\n"
      "  --devices N          number of devices\n"
      "  --set NAME=VALUE     a parameter (see --list-parameters); may be repeated\n"
      "  --config FILE        parameters from a file of 'name = value' lines\n"
      "  --truth DIR          log what truly happens, one file for each process, in DIR\n"
      "  --log                name functions that are not simulated on stderr\n"
      "  --list-parameters    what can be set, also by GPUBUSY_SIM_<NAME> in the environment\n"
      "  --help");
}

void print_parameters() {
  for (const ParameterInfo& p : gpubusy::sim::parameter_list()) {
    printf("%-20s %s\n%-20s default: %s%s%s; allowed: %s\n", p.name, p.meaning.c_str(), "",
           p.default_value.empty() ? "none" : p.default_value.c_str(), p.unit.empty() ? "" : " ",
           p.unit.c_str(), p.limits.c_str());
  }
}

[[noreturn]] void refuse(const std::string& message) {
  fprintf(stderr, "gpubusy-sim: %s\n", message.c_str());
  exit(kBadUsage);
}

std::string own_directory() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  if (length <= 0) refuse(std::string("cannot find itself: ") + strerror(errno));
  const std::string self(path, static_cast<std::size_t>(length));
  return self.substr(0, self.rfind('/'));
}

// Beside the program, as installed and as built.
std::string find_library() {
  const std::string directory = own_directory();
  for (const char* place : {"/../" GPUBUSY_SIM_LIBDIR, "/../lib", ""}) {
    const std::string candidate = directory + place + "/libgpubusy_sim.so";
    char resolved[PATH_MAX];
    if (realpath(candidate.c_str(), resolved) != nullptr) return resolved;
  }
  refuse("libgpubusy_sim.so is not in " + directory + "/../lib");
}

// The dynamic loader separates the entries of its variables by these, and has no way to quote them.
void check_path(const std::string& path) {
  if (path.find_first_of(" :\t\n") == path.npos) return;
  refuse("it is installed under '" + path +
         "', and LD_PRELOAD cannot express a path with a space or a colon; install it elsewhere");
}

std::string get(const char* name) {
  const char* value = getenv(name);
  return value == nullptr ? "" : value;
}

void set(const std::string& name, const std::string& value) {
  if (setenv(name.c_str(), value.c_str(), 1) != 0)
    refuse(std::string("setenv: ") + strerror(errno));
}

// Adds at the end, once: what else is preloaded (a profiler) must come first.
void append(const char* name, const std::string& entry, char separator) {
  const std::string before = get(name);
  std::size_t start = 0;
  while (start <= before.size()) {
    const std::size_t end = std::min(before.find_first_of(" :", start), before.size());
    if (before.substr(start, end - start) == entry) return;
    start = end + 1;
  }
  set(name, before.empty() ? entry : before + separator + entry);
}

void set_parameter(const std::string& assignment) {
  const auto equals = assignment.find('=');
  if (equals == assignment.npos || equals == 0) {
    refuse("--set " + assignment + ": NAME=VALUE is expected");
  }
  const std::string name = assignment.substr(0, equals);
  for (const ParameterInfo& p : gpubusy::sim::parameter_list()) {
    if (name == p.name) {
      set(environment_name(name), assignment.substr(equals + 1));
      return;
    }
  }
  refuse("--set " + assignment + ": there is no parameter of that name; see --list-parameters");
}

std::string absolute(const std::string& path) {
  if (path.empty() || path[0] == '/') return path;
  char here[PATH_MAX];
  return getcwd(here, sizeof here) == nullptr ? path : std::string(here) + "/" + path;
}

}  // namespace

int main(int argc, char** argv) {
  int i = 1;
  const auto value_of = [&](const char* option) -> std::string {
    if (++i >= argc) refuse(std::string(option) + " needs a value; see --help");
    return argv[i];
  };
  for (; i < argc && argv[i][0] == '-'; ++i) {
    const std::string option = argv[i];
    if (option == "--") {
      ++i;
      break;
    }
    if (option == "--help" || option == "-h") {
      print_help();
      return 0;
    }
    if (option == "--list-parameters") {
      print_parameters();
      return 0;
    }
    if (option == "--devices") {
      set_parameter("devices=" + value_of("--devices"));
    } else if (option == "--set") {
      set_parameter(value_of("--set"));
    } else if (option == "--config") {
      set("GPUBUSY_SIM_CONFIG", absolute(value_of("--config")));
    } else if (option == "--truth") {
      set("GPUBUSY_SIM_TRUTH", absolute(value_of("--truth")));
    } else if (option == "--log") {
      set("GPUBUSY_SIM_LOG", "1");
    } else {
      refuse("there is no option " + option + "; see --help");
    }
  }
  if (i >= argc) refuse("no command was given; see --help");

  gpubusy::sim::LoadedParameters loaded = gpubusy::sim::load_parameters();
  gpubusy::sim::read_kernel_table(loaded.values.kernel_table, loaded.problems);
  for (const std::string& problem : loaded.problems) {
    fprintf(stderr, "gpubusy-sim: %s\n", problem.c_str());
  }
  if (!loaded.problems.empty()) return kBadUsage;

  const std::string library = find_library();
  check_path(library);
  // Where the library is found by the names of those that it replaces.
  const std::string names = library.substr(0, library.rfind('/')) + "/gpubusy-sim";
  append("LD_PRELOAD", library, ':');
  // A newer CUPTI has more names.
  const bool newer = loaded.values.cupti_api >= 13.3;
  const std::string cupti_dir = newer ? names + "/cupti-13.5" : names;
  const std::string cupti = cupti_dir + "/libcupti.so.13";
  if (access(cupti.c_str(), R_OK) == 0) append("LD_PRELOAD", cupti, ':');
  if (newer) append("LD_LIBRARY_PATH", cupti_dir, ':');
  append("LD_LIBRARY_PATH", names, ':');
  // Triton looks for a file of that name itself, also when the library is already loaded.
  set("TRITON_LIBCUDA_PATH", names);

  execvp(argv[i], argv + i);
  const int error = errno;
  fprintf(stderr, "gpubusy-sim: %s: %s\n", argv[i], strerror(error));
  return error == ENOENT ? kNotFound : kCannotRun;
}
