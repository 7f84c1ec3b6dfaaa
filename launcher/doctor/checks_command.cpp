// SPDX-License-Identifier: Apache-2.0
//
// The command: can the library get into it, and what is it.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "launcher/doctor/checks.hpp"
#include "launcher/doctor/python_install.hpp"

namespace gpubusy::launcher::doctor {
namespace {

constexpr int kOldestMinor = 8, kNewestMinor = 14;  // Pythons whose frames can be read

std::string_view base_name(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return slash == path.npos ? path : path.substr(slash + 1);
}

// Starters, and where gpubusy goes with them.
struct Starter {
  std::string_view name, second;  // the second word, if it must be a certain one
  Status status;
  std::string_view found, cure;
};
constexpr std::string_view kOwnWorld =
    "the program starts elsewhere, or in an environment of its own";
constexpr Starter kStarters[] = {
    {"ssh", "", Status::kFailure, kOwnWorld,
     "ssh HOST gpubusy COMMAND, with gpubusy installed there"},
    {"sudo", "", Status::kFailure, kOwnWorld, "sudo gpubusy COMMAND"},
    {"su", "", Status::kFailure, kOwnWorld, "su USER -c 'gpubusy COMMAND'"},
    {"doas", "", Status::kFailure, kOwnWorld, "doas gpubusy COMMAND"},
    {"runuser", "", Status::kFailure, kOwnWorld, "runuser -u USER -- gpubusy COMMAND"},
    {"docker", "", Status::kFailure, kOwnWorld,
     "docker run --gpus all -v DIR:/gpubusy IMAGE /gpubusy/bin/gpubusy COMMAND"},
    {"podman", "", Status::kFailure, kOwnWorld,
     "podman run --device nvidia.com/gpu=all -v DIR:/gpubusy IMAGE /gpubusy/bin/gpubusy COMMAND"},
    {"nerdctl", "", Status::kFailure, kOwnWorld,
     "nerdctl run --gpus all -v DIR:/gpubusy IMAGE /gpubusy/bin/gpubusy COMMAND"},
    {"kubectl", "", Status::kFailure, kOwnWorld, "put gpubusy in front of the pod's command"},
    {"apptainer", "", Status::kFailure, kOwnWorld,
     "apptainer exec --nv -B DIR IMAGE DIR/bin/gpubusy COMMAND"},
    {"singularity", "", Status::kFailure, kOwnWorld,
     "singularity exec --nv -B DIR IMAGE DIR/bin/gpubusy COMMAND"},
    {"systemd-run", "", Status::kFailure, kOwnWorld, "systemd-run ... gpubusy COMMAND"},
    {"sbatch", "", Status::kFailure, kOwnWorld, "put gpubusy into the script, behind srun"},
    {"at", "", Status::kFailure, kOwnWorld, "put gpubusy into the script"},
    {"srun", "", Status::kWarning,
     "srun starts the tasks, on other nodes as well; they get the library only where srun passes "
     "the environment on and the path is the same",
     "srun ... gpubusy -o DIR COMMAND"},
    {"mpirun", "", Status::kWarning, "mpirun passes LD_PRELOAD to the ranks of this host only",
     "mpirun ... gpubusy -o DIR COMMAND"},
    {"mpiexec", "", Status::kWarning, "mpiexec passes LD_PRELOAD to the ranks of this host only",
     "mpiexec ... gpubusy -o DIR COMMAND"},
    {"torchrun", "", Status::kOk, "in front of torchrun is right: each rank is recorded", ""},
    {"accelerate", "launch", Status::kOk, "in front of accelerate is right: each rank is recorded",
     ""},
    {"deepspeed", "", Status::kOk,
     "in front of deepspeed is right on one node: each rank is recorded", ""},
    {"conda", "run", Status::kOk,
     "works; `conda run gpubusy COMMAND` leaves conda itself unwatched", ""},
    {"uv", "run", Status::kOk, "works; `uv run gpubusy COMMAND` leaves uv itself unwatched", ""},
    {"poetry", "run", Status::kOk,
     "works; `poetry run gpubusy COMMAND` leaves poetry itself unwatched", ""},
};

}  // namespace

std::optional<Outcome> check_command(const Machine& m) {
  if (m.command.empty()) return std::nullopt;
  if (m.measured.program.empty()) {
    return Outcome{Status::kFailure, fmt::format("'{}' is not in PATH", m.command[0]), "",
                   "Name it with its path, or activate its environment first."};
  }
  const auto& check = m.measured.preload;
  if (!check || check->verdict == PreloadVerdict::kPossible) {
    const std::string& judged = check ? check->program : m.measured.program;
    return Outcome{Status::kOk,
                   judged == m.measured.program
                       ? judged
                       : fmt::format("{}, run by {}", m.measured.program, judged),
                   "", ""};
  }
  return Outcome{Status::kFailure, check->reason,
                 "The library cannot get into this process. Children that it starts are recorded "
                 "if they are ordinary programs.",
                 check->verdict == PreloadVerdict::kHarmful
                     ? "Use a build of the program for this machine's glibc, 64 bits, or a gpubusy "
                       "that was built for the program's system."
                     : "Use a dynamically linked program without set-user-ID and file capabilities "
                       "(a copy that you own has none)."};
}

std::optional<Outcome> check_place(const Machine& m) {
  if (m.command.empty()) return std::nullopt;
  if (const std::string words = reason_in_words(m.command);
      base_name(m.command[0]) == "env" && !words.empty()) {
    return Outcome{Status::kFailure, words, "Without LD_PRELOAD nothing is recorded.",
                   "env -i NAME=VALUE... gpubusy COMMAND"};
  }
  for (const Starter& s : kStarters) {
    if (base_name(m.command[0]) != s.name) continue;
    if (!s.second.empty() && (m.command.size() < 2 || m.command[1] != s.second)) continue;
    return Outcome{s.status, fmt::format("{}: {}", s.name, s.found),
                   s.status == Status::kOk ? "" : "gpubusy watches what it starts itself.",
                   std::string(s.cure)};
  }
  return std::nullopt;
}

std::optional<Outcome> check_python(const Machine& m) {
  const auto python = python_of(m);
  if (!python) return std::nullopt;
  const std::string text =
      fmt::format("{}{}{} ({}{})", python->minor > 0 ? "3." : "version not known",
                  python->minor > 0 ? std::to_string(python->minor) : "",
                  python->free_threaded ? ", free-threaded" : "", python->executable,
                  python->kind.empty() ? "" : fmt::format(", {} {}", python->kind, python->prefix));
  const std::string why =
      "Calls, times and steps by --step call:, kernel: or nvtx: are recorded, but no Python lines, "
      "and steps cannot be told by the optimizer.";
  const std::string cure =
      fmt::format("Use CPython 3.{} to 3.{}, or --step kernel:GLOB.", kOldestMinor, kNewestMinor);
  if (python->minor == 0) return Outcome{Status::kUnknown, text, "", ""};
  if (python->free_threaded || python->minor < kOldestMinor || python->minor > kNewestMinor) {
    return Outcome{Status::kWarning, text, why, cure};
  }
  return Outcome{Status::kOk, text, "", ""};
}

std::optional<Outcome> check_torch(const Machine& m) {
  const auto python = python_of(m);
  if (!python || python->folders.empty()) return std::nullopt;
  const auto torch = torch_of(m, *python);
  const bool asked = !m.command.empty();
  if (!torch) {
    return Outcome{Status::kUnknown, "not found in " + python->folders.front(),
                   "Only matters if the program uses PyTorch.", ""};
  }
  if (!torch->hip.empty()) {
    return Outcome{asked ? Status::kFailure : Status::kWarning,
                   fmt::format("{} for ROCm {}", torch->version, torch->hip),
                   "It makes no CUDA call.", "Use a CUDA build of PyTorch."};
  }
  if (torch->cuda.empty()) {
    return Outcome{asked ? Status::kFailure : Status::kWarning,
                   fmt::format("{}, a build without CUDA", torch->version),
                   "It never uses a GPU, so there is nothing to record.",
                   "Install a CUDA build: see pytorch.org/get-started."};
  }
  return Outcome{Status::kOk, fmt::format("{}, CUDA {}", torch->version, torch->cuda), "", ""};
}

}  // namespace gpubusy::launcher::doctor
