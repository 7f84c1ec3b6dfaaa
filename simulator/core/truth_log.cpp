// SPDX-License-Identifier: Apache-2.0
#include "simulator/core/truth_log.hpp"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <mutex>
#include <new>
#include <unordered_map>

#include "simulator/core/clock.hpp"

namespace gpubusy::sim {
namespace {

// Address space for the file's mapping; the file itself grows by chunks. 64 GiB are 500 million
// records.
constexpr std::size_t kAddressSpace = std::size_t{64} << 30;
constexpr std::size_t kChunkBytes = std::size_t{1} << 20;
constexpr std::uint64_t kChunkRecords = kChunkBytes / truth::kRecordSize;

struct Strings {
  std::unordered_map<std::string, std::uint32_t> ids;
  std::uint32_t next = 1;
};

// Raw storage: re-made in a forked child, where another thread's lock would never be released.
struct Shared {
  std::mutex open, strings_lock;
  Strings strings;
};
alignas(Shared) unsigned char g_storage[sizeof(Shared)];
Shared& shared() noexcept { return *reinterpret_cast<Shared*>(g_storage); }

void make_directories(const std::string& path) noexcept {
  for (std::size_t i = 1; i <= path.size(); ++i) {
    if (i == path.size() || path[i] == '/') mkdir(path.substr(0, i).c_str(), 0777);
  }
}

std::string file_name(const std::string& where) {
  const std::string pid = std::to_string(getpid());
  if (const auto percent = where.find("%p"); percent != where.npos) {
    std::string name = where;
    name.replace(percent, 2, pid);
    if (const auto slash = name.rfind('/'); slash != name.npos && slash > 0) {
      make_directories(name.substr(0, slash));
    }
    return name;
  }
  make_directories(where);
  return where + "/" + pid + ".simtruth";
}

void read_command(char* text, std::size_t size) noexcept {
  const int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  const ssize_t n = read(fd, text, size - 1);
  close(fd);
  for (ssize_t i = 0; i + 1 < n; ++i) {
    if (text[i] == '\0') text[i] = ' ';
  }
}

}  // namespace

void TruthLog::configure(const std::string& where, std::uint32_t devices) {
  new (g_storage) Shared;
  where_ = where;
  devices_ = devices;
  enabled_.store(!where.empty(), std::memory_order_relaxed);
}

void TruthLog::after_fork() noexcept {
  if (!enabled()) return;
  new (g_storage) Shared;
  if (unsigned char* base = base_.load(); base != nullptr) munmap(base, kAddressSpace);
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
  base_.store(nullptr);
  mapped_.store(0);
  next_.store(0);
  epoch_.fetch_add(1);
  open_.store(false);
}

void TruthLog::stop(const char* why) noexcept {
  if (!enabled_.exchange(false)) return;
  dprintf(STDERR_FILENO, "gpubusy-sim: the truth log ends here: %s: %s\n", why, strerror(errno));
}

bool TruthLog::ensure_open() noexcept {
  if (open_.load(std::memory_order_acquire)) [[likely]]
    return true;
  std::lock_guard lock(shared().open);
  return open_.load(std::memory_order_relaxed) || open_file();
}

bool TruthLog::open_file() noexcept {
  std::string name = file_name(where_);
  // A process that execs another program keeps its id: both files are kept.
  for (int i = 1; i < 1000; ++i) {
    const std::string candidate = i == 1 ? name : name + "." + std::to_string(i);
    fd_ = open(candidate.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ >= 0 || errno != EEXIST) break;
  }
  if (fd_ < 0) {
    stop(name.c_str());
    return false;
  }
  void* base =
      mmap(nullptr, kAddressSpace, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd_, 0);
  if (base == MAP_FAILED) {
    stop("mmap");
    return false;
  }
  if (posix_fallocate(fd_, 0, kChunkBytes) != 0) {
    stop("posix_fallocate");
    return false;
  }
  base_.store(static_cast<unsigned char*>(base));
  auto* header = static_cast<truth::Header*>(base);
  header->version = truth::kVersion;
  header->record_size = truth::kRecordSize;
  header->pid = static_cast<std::uint32_t>(getpid());
  header->parent_pid = static_cast<std::uint32_t>(getppid());
  timespec real;
  clock_gettime(CLOCK_REALTIME, &real);
  header->start_ns = now_ns();
  header->start_realtime_ns = static_cast<std::uint64_t>(real.tv_sec) * 1'000'000'000u +
                              static_cast<std::uint64_t>(real.tv_nsec);
  header->devices = devices_;
  read_command(header->command, sizeof header->command);
  memcpy(header->magic, truth::kMagic, sizeof truth::kMagic);
  next_.store(1);
  mapped_.store(kChunkRecords);
  open_.store(true, std::memory_order_release);
  return true;
}

bool TruthLog::grow_to(std::uint64_t record) noexcept {
  std::lock_guard lock(shared().open);
  while (mapped_.load() <= record) {
    const std::uint64_t bytes = mapped_.load() * truth::kRecordSize;
    // Not ftruncate: on a full disk, touching a hole would kill the program by SIGBUS.
    if (bytes + kChunkBytes > kAddressSpace) errno = EFBIG;
    if (bytes + kChunkBytes > kAddressSpace ||
        (errno = posix_fallocate(fd_, static_cast<off_t>(bytes), kChunkBytes)) != 0) {
      stop("posix_fallocate");
      return false;
    }
    mapped_.fetch_add(kChunkRecords);
  }
  return true;
}

void TruthLog::write_bytes(const void* record, std::size_t size) noexcept {
  if (!enabled() || !ensure_open()) return;
  const std::uint64_t index = next_.fetch_add(1, std::memory_order_relaxed);
  if (index >= mapped_.load(std::memory_order_acquire) && !grow_to(index)) return;
  unsigned char* slot = base_.load(std::memory_order_relaxed) + index * truth::kRecordSize;
  constexpr std::size_t kHead = sizeof(truth::Kind);
  memcpy(slot + kHead, static_cast<const unsigned char*>(record) + kHead, size - kHead);
  // The kind makes the record valid, so it comes last.
  std::uint32_t kind;
  memcpy(&kind, record, sizeof kind);
  __atomic_store_n(reinterpret_cast<std::uint32_t*>(slot), kind, __ATOMIC_RELEASE);
}

std::uint32_t TruthLog::name_id(LoggedName& cached, std::string_view text) noexcept {
  const std::uint64_t epoch = epoch_.load(std::memory_order_relaxed);
  const std::uint64_t known = cached.id_and_epoch_.load(std::memory_order_relaxed);
  if (known >> 32 == epoch) return static_cast<std::uint32_t>(known);
  const std::uint32_t id = intern(text);
  cached.id_and_epoch_.store(epoch << 32 | id, std::memory_order_relaxed);
  return id;
}

std::uint32_t TruthLog::intern(std::string_view text) noexcept {
  std::uint32_t id;
  {
    std::lock_guard lock(shared().strings_lock);
    Strings& strings = shared().strings;
    const auto [position, is_new] = strings.ids.try_emplace(std::string(text), strings.next);
    if (!is_new) return position->second;
    id = strings.next++;
  }
  for (std::size_t part = 0; part == 0 || part * truth::kStringPart < text.size(); ++part) {
    truth::String record{truth::Kind::kString,
                         id,
                         static_cast<std::uint32_t>(text.size()),
                         static_cast<std::uint32_t>(part),
                         {}};
    const std::string_view piece = text.substr(part * truth::kStringPart, truth::kStringPart);
    memcpy(record.text, piece.data(), piece.size());
    write(record);
  }
  return id;
}

}  // namespace gpubusy::sim
