// SPDX-License-Identifier: Apache-2.0
//
// The log of what truly happened: one file for each process, in shared mapped memory, so that what
// was written is in the file whatever becomes of the process. Any thread writes without a lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "simulator/core/truth_format.hpp"

namespace gpubusy::sim {

// A string's number in the log, kept where the string is used. Constant-initialised.
class LoggedName {
 public:
  constexpr LoggedName() = default;

 private:
  friend class TruthLog;
  std::atomic<std::uint64_t> id_and_epoch_{0};
};

class TruthLog {
 public:
  // `where`: empty (no log), a directory, or a file name with %p for the process id.
  void configure(const std::string& where, std::uint32_t devices);
  bool enabled() const noexcept { return enabled_.load(std::memory_order_relaxed); }

  std::uint32_t name_id(LoggedName& cached, std::string_view text) noexcept;

  // Writes a record of truth:: whose `kind` is set. A full disk ends the log, with one line.
  template <class Record>
  void write(const Record& record) noexcept {
    static_assert(sizeof(Record) <= truth::kRecordSize);
    write_bytes(&record, sizeof record);
  }

  // In the child: the parent's file is left alone, the next record opens one of the child's own.
  void after_fork() noexcept;

 private:
  void write_bytes(const void* record, std::size_t size) noexcept;
  bool ensure_open() noexcept;
  bool open_file() noexcept;
  bool grow_to(std::uint64_t record) noexcept;
  void stop(const char* why) noexcept;
  std::uint32_t intern(std::string_view text) noexcept;

  std::atomic<bool> enabled_{false};
  std::atomic<bool> open_{false};
  std::atomic<std::uint64_t> next_{0};
  std::atomic<std::uint64_t> mapped_{0};
  std::atomic<unsigned char*> base_{nullptr};
  std::atomic<std::uint32_t> epoch_{1};
  std::uint32_t devices_ = 0;
  int fd_ = -1;
  std::string where_;
};

}  // namespace gpubusy::sim
