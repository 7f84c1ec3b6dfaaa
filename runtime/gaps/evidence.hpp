// SPDX-License-Identifier: Apache-2.0
//
// What the kernel tells of another thread of this process, or of another process, without stopping
// it. For the hidden
// thread: system calls only. errno may change.
#pragma once

#include <cstddef>
#include <cstdint>

#include "recording/format.hpp"

namespace gpubusy::runtime::gaps {

// What /proc tells of one thread, kept open: a file that is read again costs a third of one that is
// opened. After the thread's end they tell nothing, also when its id is used again.
class TaskFiles {
 public:
  enum File : unsigned { kProcessor, kSystemCall, kState };

  void open(std::uint32_t thread_id) noexcept;  // of this process
  // The main thread of another process; kState has the faults and times of all its threads.
  void open_process(std::uint32_t process_id) noexcept;
  void close() noexcept;
  // The text into `text`, with a '\0' behind. Bytes; 0: it is not told.
  std::size_t read(File file, char* text, std::size_t size) const noexcept;

 private:
  static constexpr int kFiles = 3;
  void open_in(const char* directory, std::uint32_t id) noexcept;

  int files_[kFiles] = {-1, -1, -1};
};

// The kernel's name of that thread of this process, with a '\0' behind; false: there is none.
bool name_of_thread(std::uint32_t thread_id, char (&name)[16]) noexcept;

// How many threads this process has; 0: not told.
unsigned thread_count() noexcept;

// Whether the calling thread is still of the same effective user as that one; libc's setuid()
// changes the threads that libc knows. True where it is not told.
bool has_user_of(std::uint32_t thread_id) noexcept;

// The number behind a field (with its ":\t") of the status of a thread of this process; 0: the
// calling one. Files only. False: not told.
bool status_number(std::uint32_t thread_id, const char* field, std::uint64_t& out) noexcept;

struct SystemCall {
  enum class State : std::uint8_t { kUnknown, kRuns, kOutside, kInside };
  State state = State::kUnknown;
  std::uint16_t number = 0;
  std::uint64_t argument = 0;
  std::uint64_t sp = 0, pc = 0;  // kOutside, kInside
  bool operator==(const SystemCall&) const = default;
};
// "running", "-1 SP PC" or "NUMBER six arguments SP PC".
SystemCall parse_system_call(const char* text) noexcept;

struct ProcessorUse {  // schedstat; all 0: not told
  std::uint64_t run_ns = 0, wait_ns = 0, turns = 0;
  bool known() const noexcept { return turns != 0; }
  bool operator==(const ProcessorUse&) const = default;
};
ProcessorUse parse_processor_use(const char* text) noexcept;

struct TaskState {  // stat
  char state = 0;   // 0: not told
  std::uint64_t major_faults = 0;
  std::uint32_t parent = 0;
  std::uint64_t run_ticks = 0;      // in user mode and in the kernel
  std::uint64_t start_ticks = 0;    // with its id, identifies a process
  std::uint64_t storage_ticks = 0;  // 0 where the kernel does not count them
  char name[16] = {};
};
TaskState parse_task_state(const char* text) noexcept;

// Whether /proc has this process under the id that it has for itself: not if it is in a PID name
// space of its own and has the /proc of another.
bool proc_has_own_ids() noexcept;
// The kernel's id of a process by its name in /proc; 0: not one.
std::uint32_t process_id_of(const char* name) noexcept;
// Of the process with that id; nothing: not told.
TaskState state_of_process(std::uint32_t process_id) noexcept;
// Bytes of its command line, arguments end with '\0'. 0: not told.
std::size_t command_line_of(std::uint32_t process_id, char* text, std::size_t size) noexcept;

// What a descriptor of that thread stands for.
recording::GapFile kind_of_descriptor(std::uint32_t thread_id, std::uint64_t descriptor) noexcept;
// … of another process.
recording::GapFile kind_of_process_descriptor(std::uint32_t process_id,
                                              std::uint64_t descriptor) noexcept;
// Whether the first argument of a system call is a descriptor that it may wait for.
bool takes_descriptor(std::uint16_t system_call) noexcept;

}  // namespace gpubusy::runtime::gaps
