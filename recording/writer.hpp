// SPDX-License-Identifier: Apache-2.0
//
// Writes a recording from inside the target. libc only; never throws, blocks or changes errno.
//
// RecordingFile is shared by the threads of a process (all members are safe to call at once).
// ThreadWriter belongs to one thread. Space is reserved before it is mapped, so a full disk is an
// error code and never a SIGBUS; nothing lies in /dev/shm unless the user chose that directory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "recording/format.hpp"

namespace gpubusy::recording {

class RecordingFile {
 public:
  struct Description {
    const char* directory;  // must exist
    const char* host;
    const char* library_version;
    std::uint64_t start_ns, start_unix_ns;
    std::uint64_t max_bytes;
    int rank, world_size, local_rank;
    std::uint64_t run = 0;
  };

  // 0, or an errno value; `path()` then names what was tried. The name is made exclusively.
  int create(const Description& description) noexcept;
  bool is_open() const noexcept { return header_ != nullptr; }
  // Open, and nothing has stopped it.
  bool is_writable() const noexcept;
  const char* path() const noexcept { return path_; }
  FileHeader* header() noexcept { return header_; }

  // A live block of kBlockSize bytes for the calling thread. nullptr: the recording has stopped
  // (header()->state says why), or there is no memory for the mapping (the state is still kOpen).
  // The caller unmaps it by release_block().
  BlockHeader* acquire_block(std::uint32_t thread_id, std::uint64_t now_ns) noexcept;
  // Copies a full live block to a place of its own and empties it. False as above; the block stays
  // as it is.
  bool flush_block(BlockHeader* block, std::uint64_t now_ns) noexcept;
  // Unmaps and gives the unused tail of the block back to the file system.
  void release_block(BlockHeader* block) noexcept;

  void count_lost(std::uint64_t n) noexcept;

  // The descriptor, or -1. A thread with descriptors of its own must keep it.
  int descriptor() const noexcept { return fd_; }

  // Marks an orderly end. Mappings stay: late hooks may still run.
  void finish(FileState state, std::uint64_t now_ns) noexcept;

  // In a forked child: forget the parent's file without touching it. Async-signal-safe.
  void forget_after_fork() noexcept;

 private:
  // Stops the recording, if it has not stopped before for another reason.
  void stop(FileState state) noexcept;
  bool owns_descriptor() const noexcept;
  // Before every use of the descriptor, which will write up to `end`. False: the recording has
  // stopped.
  bool check_descriptor(std::uint64_t end) noexcept;
  bool reserve_bytes(std::uint64_t bytes) noexcept;
  // Whether a block more leaves the program the rest of the file system that we keep off.
  bool disk_has_room() noexcept;

  int fd_ = -1;
  // What fd_ was opened on: programs close descriptors that they did not open (daemons close all),
  // and the number may then stand for a file of theirs.
  std::uint64_t device_ = 0;
  std::uint64_t inode_ = 0;
  FileHeader* header_ = nullptr;
  std::uint64_t max_bytes_ = 0;
  std::atomic<std::uint32_t> writers_{0};
  std::atomic<std::uint64_t> reserved_bytes_{0};
  std::atomic<std::uint64_t> next_disk_check_{0};  // when this many bytes are reserved
  char path_[4352] = {};
};

class ThreadWriter {
 public:
  // Room for `size` bytes (a multiple of 8, at most kMaxRecordSize), or nullptr (counted as lost).
  // The bytes are uninitialised. Nothing is visible to readers before commit().
  void* reserve(RecordingFile& file, std::size_t size, std::uint32_t thread_id,
                std::uint64_t now_ns) noexcept {
    if (cursor_ + size <= end_) [[likely]]
      return cursor_;
    return make_room(file, size, thread_id, now_ns);
  }
  void commit(std::size_t size) noexcept {
    cursor_ += size;
    block_->committed.store(static_cast<std::uint32_t>(cursor_ - first_),
                            std::memory_order_release);
  }
  void close(RecordingFile& file) noexcept;
  void forget_after_fork() noexcept { *this = ThreadWriter{}; }

 private:
  void* make_room(RecordingFile& file, std::size_t size, std::uint32_t thread_id,
                  std::uint64_t now_ns) noexcept;

  BlockHeader* block_ = nullptr;
  char* first_ = nullptr;
  char* cursor_ = nullptr;
  char* end_ = nullptr;
  std::uint64_t retry_ns_ = 0;  // no block is asked for before: there was no memory for one
};

}  // namespace gpubusy::recording
