// SPDX-License-Identifier: Apache-2.0
//
// Looks at the processes below this one while its launching threads are silent: a loader's workers
// are what they may wait for. What the kernel tells of each, and the Python frames of those that
// were forked, read from outside: nothing is stopped, signalled, traced or waited for, and no
// process knows of it.
//
// Forked processes put themselves on a page that they share with this one; others are looked for in
// /proc now and then. What all of it costs is bounded by a budget of processor time.
// For the hidden thread (hidden_thread.hpp), but for the functions at the end.
#pragma once

#include <cstdint>

#include "recording/format.hpp"
#include "runtime/gaps/evidence.hpp"
#include "runtime/python/remote.hpp"
#include "runtime/stack_table.hpp"
#include "runtime/thread_state.hpp"

namespace gpubusy::runtime::gaps {

// What else a look needs, and whose it is.
struct Tools {
  ThreadState& self;  // writes the records
  RemoteCodes* codes;
  python::RemoteMemory& memory;
  python::RemoteFrame* frames;  // room for max_frames each
  python::RemoteFrame* second;
  int max_frames;
};

class Workers {
 public:
  void begin() noexcept;  // a window
  void end() noexcept;
  // As many as the budget allows, in turn.
  void look(const Tools& tools, std::uint64_t now_ns, std::uint64_t silent_since_ns) noexcept;

 private:
  static constexpr int kMaxProcesses = 32;
  struct Process {
    std::uint32_t id = 0;  // 0: a free place
    std::uint32_t parent = 0;
    std::uint64_t start_ticks = 0;
    std::uint64_t looked_ns = 0;  // 0: not yet
    ProcessorUse use;
    TaskState task;
    SystemCall call;
    std::uint32_t python_stack = 0;
    std::uint8_t flags = 0;  // GapFlags
    std::uint8_t kind = 0;   // WorkerFlags
    bool inherited =
        false;  // its command line is this one's: it was forked and may yet run another
    recording::GapFile file = recording::GapFile::kNone;
    TaskFiles files;
  };

  void find_forked() noexcept;
  void find_others(std::uint64_t now_ns) noexcept;
  // Of /proc, the processes behind that one and up to that one; a search that has to end before
  // says where the next one goes on.
  struct Part {
    std::uint32_t behind = 0;    // 0: from its begin
    std::uint16_t left_out = 0;  // no room
  };
  void search(long list, std::uint32_t first, std::uint32_t last, Part& part, int most) noexcept;
  // False: there is no room. `born`: by the page.
  bool add(std::uint32_t id, bool born) noexcept;
  Process* free_place() noexcept;
  bool knows(std::uint32_t id) const noexcept;
  void drop(Process& process) noexcept;
  void name_kind(Process& process, bool born) noexcept;
  bool look_at(const Tools& tools, Process& process, std::uint64_t now_ns) noexcept;
  void read_stack(const Tools& tools, Process& process) noexcept;

  Process processes_[kMaxProcesses];
  int next_ = 0;              // whose turn it is
  bool swept_ = false;        // those that have ended were dropped, in this look
  std::uint32_t births_ = 0;  // so many entries of the page were looked at
  Part later_, earlier_;      // processes made later than this one, and the others
  std::uint64_t next_search_ns_ = 0, next_earlier_ns_ = 0;
  std::uint64_t paid_until_ns_ = 0;  // the budget has had its share of silence until then
  std::int64_t budget_ns_ = 0;
  char text_[1024], again_[1024];
};

// Makes the page, unless this process has one. From then on children put themselves on it.
void expect_forks() noexcept;
// In the child of a fork, by the thread that forked.
void announce_fork() noexcept;

}  // namespace gpubusy::runtime::gaps
