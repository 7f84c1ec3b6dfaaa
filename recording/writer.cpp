// SPDX-License-Identifier: Apache-2.0
#include "recording/writer.hpp"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "recording/disk_reserve.hpp"

namespace gpubusy::recording {
namespace {

// Free space is asked for at least after so many bytes.
constexpr std::uint64_t kDiskCheckBytes = 16u << 20;

// A thread that got no memory asks again after this time, not at each record.
constexpr std::uint64_t kMemoryRetryNs = 100'000'000;

// Round system calls: errno stays the program's, and a thread that it cancels is not cancelled
// here, where half a block may be written and the recorder's locks are held.
class SystemWork {
 public:
  SystemWork() noexcept { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state_); }
  ~SystemWork() {
    pthread_setcancelstate(cancel_state_, nullptr);
    errno = errno_;
  }
  SystemWork(const SystemWork&) = delete;
  SystemWork& operator=(const SystemWork&) = delete;

 private:
  const int errno_ = errno;
  int cancel_state_ = PTHREAD_CANCEL_ENABLE;
};

// Field 22 of /proc/self/stat. The command name before it may hold spaces and parentheses.
std::uint64_t process_start_ticks() noexcept {
  const int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  char text[1024];
  const ssize_t n = read(fd, text, sizeof text - 1);
  close(fd);
  if (n <= 0) return 0;
  text[n] = '\0';
  const char* p = strrchr(text, ')');
  if (p == nullptr) return 0;
  ++p;
  for (int field = 3; field <= 22; ++field) {
    while (*p == ' ') ++p;
    if (field == 22) return strtoull(p, nullptr, 10);
    while (*p != '\0' && *p != ' ') ++p;
  }
  return 0;
}

void read_into(const char* path, char* out, std::size_t size) noexcept {
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  const ssize_t n = read(fd, out, size - 1);
  out[n > 0 ? n : 0] = '\0';
  close(fd);
}

// A host name may hold bytes that a file name should not (a slash would even be a directory).
void append_file_safe(char* out, std::size_t size, const char* text) noexcept {
  std::size_t n = strlen(out);
  for (; *text != '\0' && n + 1 < size; ++text) {
    const unsigned char c = static_cast<unsigned char>(*text);
    out[n++] = (c < 0x21 || c == '/' || c == 0x7f) ? '_' : *text;
  }
  out[n] = '\0';
}

// Unlike the libc function it does not give up because a timer of the program ticks (the limit is
// for signals that come faster than the file system works).
int allocate(int fd, off_t offset, off_t size) noexcept {
  int error = EINTR;
  for (int attempt = 0; attempt < 1000 && error == EINTR; ++attempt) {
    error = posix_fallocate(fd, offset, size);
  }
  return error;
}

// Keeps our descriptor out of the small numbers that programs close or reuse blindly (daemons close
// 3..n, shells dup to 10), and off the last number, which shells take for themselves.
int move_away(int fd) noexcept {
  constexpr int kHigh = 500, kFromEnd = 16;
  struct rlimit limit;
  int least = kHigh;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < kHigh + kFromEnd) {
    least = limit.rlim_cur < 2 * kFromEnd ? static_cast<int>(limit.rlim_cur) / 2
                                          : static_cast<int>(limit.rlim_cur) - kFromEnd;
  }
  int high = fcntl(fd, F_DUPFD_CLOEXEC, least < 3 ? 3 : least);
  if (high < 0) high = fcntl(fd, F_DUPFD_CLOEXEC, 3);
  if (high < 0) return fd;
  if (high < fd) {
    close(high);
    return fd;
  }
  close(fd);
  return high;
}

// Beyond it a write raises SIGXFSZ, which kills the program. Asked each time: programs change it.
std::uint64_t file_size_limit() noexcept {
  struct rlimit limit;
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return ~std::uint64_t{0};
  }
  return limit.rlim_cur;
}

// What a recording may still take of the file system; ~0: the file system does not say.
std::uint64_t room_beyond_reserve(int fd) noexcept {
  struct statvfs status;
  if (fstatvfs(fd, &status) != 0 || status.f_blocks == 0) return ~std::uint64_t{0};
  const std::uint64_t total = status.f_blocks * status.f_frsize;
  const std::uint64_t free = status.f_bavail * status.f_frsize;
  const std::uint64_t reserve = disk_reserve(total);
  return free > reserve ? free - reserve : 0;
}

FileState state_for(int error) noexcept {
  switch (error) {
    case ENOSPC:
    case EDQUOT: return FileState::kDiskFull;
    case EBADF: return FileState::kDescriptorLost;
    default: return FileState::kWriteFailed;
  }
}

}  // namespace

int RecordingFile::create(const Description& d) noexcept {
  const SystemWork work;
  if (file_size_limit() < kHeaderSize + kBlockSize) return EFBIG;
  char host[128] = {};
  append_file_safe(host, sizeof host, d.host);
  // Host, pid and start time: processes of other PID name spaces on the same host may share a pid,
  // and may even start in the same nanosecond, hence the counter.
  for (int attempt = 0; attempt < 1000; ++attempt) {
    const int n =
        snprintf(path_, sizeof path_, "%s/%s_%d.%llu%s%.*d%s", d.directory, host,
                 static_cast<int>(getpid()), static_cast<unsigned long long>(d.start_unix_ns),
                 attempt == 0 ? "" : "-", attempt == 0 ? 0 : 1, attempt, kFileSuffix);
    if (n < 0 || n >= static_cast<int>(sizeof path_)) return ENAMETOOLONG;
    fd_ = open(path_, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ >= 0) break;
    if (errno != EEXIST) return errno;
  }
  if (fd_ < 0) return EEXIST;

  fd_ = move_away(fd_);
  if (fd_ < 3) {
    // The program has closed a standard descriptor: what it prints would end up in the recording.
    close(fd_);
    fd_ = -1;
    unlink(path_);
    return EMFILE;
  }
  struct stat made;
  int error = fstat(fd_, &made) == 0 ? 0 : errno;
  if (error == 0 && room_beyond_reserve(fd_) < kHeaderSize + kBlockSize) error = ENOSPC;
  if (error == 0) error = allocate(fd_, 0, kHeaderSize);
  void* page = MAP_FAILED;
  if (error == 0) {
    page = mmap(nullptr, kHeaderSize, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    if (page == MAP_FAILED) error = errno;
  }
  if (error != 0) {
    close(fd_);
    fd_ = -1;
    unlink(path_);
    return error;
  }
  device_ = made.st_dev;
  inode_ = made.st_ino;
  auto* h = static_cast<FileHeader*>(page);
  h->version = kFormatVersion;
  h->header_size = kHeaderSize;
  h->block_size = kBlockSize;
  h->pid = static_cast<std::uint32_t>(getpid());
  h->parent_pid = static_cast<std::uint32_t>(getppid());
  h->pointer_bits = 64;
  h->start_ns = d.start_ns;
  h->start_unix_ns = d.start_unix_ns;
  h->process_start_ticks = process_start_ticks();
  h->rank = d.rank;
  h->world_size = d.world_size;
  h->local_rank = d.local_rank;
  h->run = d.run;
  strncpy(h->library_version, d.library_version, sizeof h->library_version - 1);
  strncpy(h->host, d.host, sizeof h->host - 1);
  const ssize_t n = readlink("/proc/self/exe", h->executable, sizeof h->executable - 1);
  if (n < 0) h->executable[0] = '\0';
  read_into("/proc/self/cmdline", h->command_line, sizeof h->command_line);
  // The magic last: a reader never takes a half-made header for a whole one.
  std::atomic_thread_fence(std::memory_order_release);
  memcpy(h->magic, kFileMagic, sizeof h->magic);
  max_bytes_ = d.max_bytes;
  header_ = h;
  return 0;
}

bool RecordingFile::is_writable() const noexcept {
  return header_ != nullptr && header_->state.load(std::memory_order_relaxed) ==
                                   static_cast<std::uint32_t>(FileState::kOpen);
}

void RecordingFile::stop(FileState state) noexcept {
  std::uint32_t open_state = static_cast<std::uint32_t>(FileState::kOpen);
  header_->state.compare_exchange_strong(open_state, static_cast<std::uint32_t>(state));
}

bool RecordingFile::owns_descriptor() const noexcept {
  // Of a file on NFS fstat asks for times, and for these waits until all is written to the server.
  struct statx known;
  if (statx(fd_, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_INO, &known) == 0) {
    return makedev(known.stx_dev_major, known.stx_dev_minor) == device_ && known.stx_ino == inode_;
  }
  struct stat now;  // refused by some sandboxes
  return errno != EBADF && fstat(fd_, &now) == 0 && now.st_dev == device_ && now.st_ino == inode_;
}

bool RecordingFile::check_descriptor(std::uint64_t end) noexcept {
  if (!owns_descriptor()) {
    // Not closed: the number is the program's now.
    stop(FileState::kDescriptorLost);
    return false;
  }
  if (end > file_size_limit()) {
    stop(FileState::kFileLimit);
    return false;
  }
  return end == 0 || disk_has_room();
}

bool RecordingFile::disk_has_room() noexcept {
  // Seldom where there is plenty: on a network file system it is a message to the server.
  const std::uint64_t reserved = reserved_bytes_.load(std::memory_order_relaxed);
  if (reserved < next_disk_check_.load(std::memory_order_relaxed)) return true;
  const std::uint64_t room = room_beyond_reserve(fd_);
  if (room < kBlockSize) {
    stop(FileState::kDiskFull);
    return false;
  }
  const std::uint64_t part = room / 8;
  next_disk_check_.store(reserved + (part < kDiskCheckBytes ? part : kDiskCheckBytes),
                         std::memory_order_relaxed);
  return true;
}

bool RecordingFile::reserve_bytes(std::uint64_t bytes) noexcept {
  if (reserved_bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes <= max_bytes_)
    return true;
  stop(FileState::kBudgetSpent);
  return false;
}

BlockHeader* RecordingFile::acquire_block(std::uint32_t thread_id, std::uint64_t now_ns) noexcept {
  const SystemWork work;
  if (!is_writable() || !reserve_bytes(kBlockSize)) return nullptr;
  const std::uint64_t index = header_->blocks.fetch_add(1, std::memory_order_relaxed);
  const off_t offset = static_cast<off_t>(kHeaderSize + index * kBlockSize);
  if (!check_descriptor(kHeaderSize + (index + 1) * kBlockSize)) return nullptr;
  // Mapped before there is space: without memory no disk is used up. Until then it is not touched.
  void* p = mmap(nullptr, kBlockSize, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, offset);
  if (p == MAP_FAILED) {
    reserved_bytes_.fetch_sub(kBlockSize, std::memory_order_relaxed);
    // The place in the file too, unless a later one is taken: then it stays a hole.
    std::uint64_t after = index + 1;
    header_->blocks.compare_exchange_strong(after, index, std::memory_order_relaxed);
    return nullptr;
  }
  // posix_fallocate, not ftruncate: a page beyond a full disk would raise SIGBUS when touched.
  if (const int error = allocate(fd_, offset, kBlockSize); error != 0) {
    munmap(p, kBlockSize);
    stop(state_for(error));
    return nullptr;
  }
  // Touched here once: MAP_POPULATE would not spare the write faults of a shared file mapping.
  for (std::size_t at = 0; at < kBlockSize; at += 4096) {
    static_cast<volatile char*>(p)[at] = 0;
  }
  auto* block = static_cast<BlockHeader*>(p);
  block->thread_id = thread_id;
  block->writer = writers_.fetch_add(1, std::memory_order_relaxed);
  block->sequence = 0;
  block->start_ns = now_ns;
  block->offset = static_cast<std::uint64_t>(offset);
  std::atomic_thread_fence(std::memory_order_release);
  block->magic = kBlockMagic;
  return block;
}

bool RecordingFile::flush_block(BlockHeader* block, std::uint64_t now_ns) noexcept {
  const SystemWork work;
  const std::size_t used = sizeof(BlockHeader) + block->committed.load(std::memory_order_relaxed);
  if (!is_writable() || !reserve_bytes(used)) return false;
  const std::uint64_t index = header_->blocks.fetch_add(1, std::memory_order_relaxed);
  const std::uint64_t live_offset = block->offset;
  const std::uint64_t offset = kHeaderSize + index * kBlockSize;
  if (!check_descriptor(offset + used)) return false;
  block->offset = offset;
  std::size_t done = 0;
  int error = 0;
  while (done < used && error == 0) {
    const ssize_t n = pwrite(fd_, reinterpret_cast<const char*>(block) + done, used - done,
                             static_cast<off_t>(offset + done));
    if (n > 0) {
      done += static_cast<std::size_t>(n);
    } else if (n == 0 || errno != EINTR) {
      error = n == 0 ? ENOSPC : errno;
    }
  }
  block->offset = live_offset;
  if (error != 0) {
    // The live block keeps it all; its torn copy must not be taken for it.
    constexpr char kNothing[sizeof(BlockHeader)] = {};
    if (done != 0) {
      [[maybe_unused]] const ssize_t n =
          pwrite(fd_, kNothing, done < sizeof kNothing ? done : sizeof kNothing,
                 static_cast<off_t>(offset));
    }
    stop(state_for(error));
    return false;
  }
  // In this order: a reader must not take the old bytes for the new sequence.
  block->committed.store(0, std::memory_order_release);
  block->start_ns = now_ns;
  ++block->sequence;
  return true;
}

void RecordingFile::release_block(BlockHeader* block) noexcept {
  const SystemWork work;
  // A program that starts a thread per request would otherwise fill the disk with empty blocks.
  constexpr std::uint64_t kPage = 4096;
  const std::uint64_t used =
      (sizeof(BlockHeader) + block->committed.load(std::memory_order_relaxed) + kPage - 1) &
      ~(kPage - 1);
  const std::uint64_t offset = block->offset;
  munmap(block, kBlockSize);
  if (used < kBlockSize && check_descriptor(0) &&
      fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset + used),
                static_cast<off_t>(kBlockSize - used)) == 0) {
    reserved_bytes_.fetch_sub(kBlockSize - used, std::memory_order_relaxed);
  }
}

void RecordingFile::count_lost(std::uint64_t n) noexcept {
  if (header_ != nullptr) header_->lost_records.fetch_add(n, std::memory_order_relaxed);
}

void RecordingFile::finish(FileState state, std::uint64_t now_ns) noexcept {
  if (header_ == nullptr) return;
  header_->end_ns.store(now_ns, std::memory_order_relaxed);
  stop(state);
}

void RecordingFile::forget_after_fork() noexcept {
  const SystemWork work;
  if (owns_descriptor()) close(fd_);
  fd_ = -1;
  if (header_ != nullptr) munmap(header_, kHeaderSize);
  header_ = nullptr;
  reserved_bytes_.store(0, std::memory_order_relaxed);
  next_disk_check_.store(0, std::memory_order_relaxed);
  writers_.store(0, std::memory_order_relaxed);
  path_[0] = '\0';
}

void* ThreadWriter::make_room(RecordingFile& file, std::size_t size, std::uint32_t thread_id,
                              std::uint64_t now_ns) noexcept {
  const bool fits = size <= kMaxRecordSize;
  if (fits && block_ == nullptr) {
    if (now_ns >= retry_ns_) {
      block_ = file.acquire_block(thread_id, now_ns);
      if (block_ == nullptr && file.is_writable()) retry_ns_ = now_ns + kMemoryRetryNs;
    }
    if (block_ != nullptr) {
      first_ = cursor_ = reinterpret_cast<char*>(block_) + sizeof(BlockHeader);
      end_ = reinterpret_cast<char*>(block_) + kBlockSize;
      return cursor_;
    }
  } else if (fits && file.flush_block(block_, now_ns)) {
    cursor_ = first_;
    return cursor_;
  }
  file.count_lost(1);
  return nullptr;
}

void ThreadWriter::close(RecordingFile& file) noexcept {
  if (block_ == nullptr) return;
  file.release_block(block_);
  block_ = nullptr;
  first_ = cursor_ = end_ = nullptr;
}

}  // namespace gpubusy::recording
