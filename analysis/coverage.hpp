// SPDX-License-Identifier: Apache-2.0
//
// Which layers of CUDA a process was seen in, how its calls came to the hooks, and which loaded
// files bring a CUDA runtime of their own, whose calls show in the driver layer only.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "recording/recording.hpp"

namespace gpubusy::analysis {

struct LayerReach {
  std::uint64_t calls = 0;         // recorded; a driver call inside a runtime call is none
  std::uint64_t linked_calls = 0;  // … of functions that were never handed out by name
  std::uint32_t functions_called = 0;
  std::uint32_t by_dlsym = 0;  // functions handed out; one may be counted in several
  std::uint32_t by_dlvsym = 0;
  std::uint32_t by_proc_address = 0;
  std::uint32_t handed_out() const { return by_dlsym + by_dlvsym + by_proc_address; }
};

struct UnreadModule {
  std::string path, why;
};

struct Reach {
  bool known = false;                // false: a recording of before this was recorded
  bool driver_loaded = false;        // by the program, or what it is linked to
  std::array<LayerReach, 2> layers;  // by recording::Layer
  std::uint64_t modules = 0, modules_left_out = 0;
  std::vector<std::string> embedded;  // paths of files with a CUDA runtime of their own
  std::vector<UnreadModule> unread;
  const LayerReach& runtime() const { return layers[0]; }
  const LayerReach& driver() const { return layers[1]; }
  // A runtime of its own is there, and it was given no hook.
  bool misses_embedded() const {
    return driver_loaded && !embedded.empty() && driver().handed_out() == 0;
  }
};

enum class EmbeddedRuntime : std::uint8_t { kNo, kYes, kUnreadable, kOtherFile };

// Does the file hold a statically linked libcudart? The marker is the name under which every
// libcudart since CUDA 10 (those looked at) shares its data with others of the process,
// "/cudart.shm.…", among the file's constants; the shared libcudart itself does not count. Reads
// the constants of files that look symbols up (dlsym), and nothing of others. `build_id` (hex;
// empty: not known) tells whether it still is the file that was loaded.
EmbeddedRuntime find_embedded_runtime(const std::string& path, const std::string& build_id,
                                      std::string& why);

// Files are read once for all processes of a session.
class ModuleScan {
 public:
  void add(const recording::Recording& recording, Reach& reach);

 private:
  struct Found {
    EmbeddedRuntime what;
    std::string why;
  };
  std::map<std::pair<std::string, std::string>, Found> found_;  // by path and build id
};

// All but what only the files tell.
Reach reach_of(const recording::Recording& recording);

}  // namespace gpubusy::analysis
