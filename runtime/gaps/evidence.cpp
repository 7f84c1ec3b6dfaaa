// SPDX-License-Identifier: Apache-2.0
#include "runtime/gaps/evidence.hpp"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "host/text_file.hpp"

namespace gpubusy::runtime::gaps {
namespace {

// Text without printf, whose locale is thread-local.
class Path {
 public:
  Path& add(const char* text) noexcept {
    while (*text != '\0' && at_ + 1 < sizeof text_) text_[at_++] = *text++;
    text_[at_] = '\0';
    return *this;
  }
  Path& add(std::uint64_t number) noexcept {
    char digits[24];
    char* p = digits + sizeof digits - 1;
    *p = '\0';
    do {
      *--p = static_cast<char>('0' + number % 10);
      number /= 10;
    } while (number != 0);
    return add(p);
  }
  const char* text() const noexcept { return text_; }

 private:
  char text_[96] = {};
  std::size_t at_ = 0;
};

std::uint64_t number_at(const char*& p) noexcept {
  while (*p == ' ') ++p;
  std::uint64_t value = 0;
  if (p[0] == '0' && p[1] == 'x') {
    for (p += 2;; ++p) {
      if (*p >= '0' && *p <= '9') {
        value = value << 4 | static_cast<unsigned>(*p - '0');
      } else if (*p >= 'a' && *p <= 'f') {
        value = value << 4 | static_cast<unsigned>(*p - 'a' + 10);
      } else {
        return value;
      }
    }
  }
  for (; *p >= '0' && *p <= '9'; ++p) value = value * 10 + static_cast<unsigned>(*p - '0');
  return value;
}

void skip_fields(const char*& p, int fields) noexcept {
  for (; fields > 0; --fields) {
    while (*p == ' ') ++p;
    while (*p != '\0' && *p != ' ') ++p;
  }
}

}  // namespace

void TaskFiles::open_in(const char* directory, std::uint32_t id) noexcept {
  constexpr const char* kNames[kFiles] = {"schedstat", "syscall", "stat"};
  for (int i = 0; i < kFiles; ++i) {
    Path path;
    path.add(directory).add(id).add("/").add(kNames[i]);
    files_[i] =
        static_cast<int>(syscall(SYS_openat, AT_FDCWD, path.text(), O_RDONLY | O_CLOEXEC, 0));
  }
}

void TaskFiles::open(std::uint32_t thread_id) noexcept { open_in("/proc/self/task/", thread_id); }

void TaskFiles::open_process(std::uint32_t process_id) noexcept { open_in("/proc/", process_id); }

void TaskFiles::close() noexcept {
  for (int& file : files_) {
    if (file >= 0) syscall(SYS_close, file);
    file = -1;
  }
}

std::size_t TaskFiles::read(File file, char* text, std::size_t size) const noexcept {
  text[0] = '\0';
  if (files_[file] < 0) return 0;
  const long n = syscall(SYS_pread64, files_[file], text, size - 1, 0l);
  if (n <= 0) return 0;
  text[n] = '\0';
  return static_cast<std::size_t>(n);
}

unsigned thread_count() noexcept {
  // A directory has a link for each directory in it, and two more.
  struct statx tasks;
  if (syscall(SYS_statx, AT_FDCWD, "/proc/self/task", 0, STATX_NLINK, &tasks) != 0 ||
      tasks.stx_nlink < 3) {
    return 0;
  }
  return tasks.stx_nlink - 2;
}

namespace {

std::size_t read_file(const Path& path, char* text, std::size_t size) noexcept {
  const long fd = syscall(SYS_openat, AT_FDCWD, path.text(), O_RDONLY | O_CLOEXEC, 0);
  if (fd < 0) return 0;
  const long n = syscall(SYS_read, fd, text, size - 1);
  syscall(SYS_close, fd);
  if (n <= 0) return 0;
  text[n] = '\0';
  return static_cast<std::size_t>(n);
}

// The rest of the line of `field` in that thread's status, of which some lines are as long as a
// process has groups. False: not told.
bool status_field(std::uint32_t thread_id, const char* field, char* value,
                  std::size_t size) noexcept {
  host::Path path;
  if (thread_id == 0) {
    path.add("/proc/thread-self/status");
  } else if (thread_id == static_cast<std::uint32_t>(getpid())) {
    path.add("/proc/self/status");  // also where /proc has other ids
  } else {
    Path thread;
    thread.add("/proc/self/task/").add(thread_id).add("/status");
    path.add(thread.text());
  }
  return host::read_field(path, field, value, size);
}

}  // namespace

bool name_of_thread(std::uint32_t thread_id, char (&name)[16]) noexcept {
  name[0] = '\0';
  Path path;
  path.add("/proc/self/task/").add(thread_id).add("/comm");
  char text[sizeof name + 1];
  const std::size_t n = read_file(path, text, sizeof text);
  if (n == 0) return false;
  if (text[n - 1] == '\n') text[n - 1] = '\0';
  memcpy(name, text, sizeof name);
  name[sizeof name - 1] = '\0';
  return true;
}

bool has_user_of(std::uint32_t thread_id) noexcept {
  char text[64];
  if (!status_field(thread_id, "Uid:\t", text, sizeof text)) return true;
  const char* uid = text;
  number_at(uid);  // the real one
  if (*uid == '\t') ++uid;
  return number_at(uid) == static_cast<std::uint64_t>(syscall(SYS_geteuid));
}

bool status_number(std::uint32_t thread_id, const char* field, std::uint64_t& out) noexcept {
  char text[64];
  if (!status_field(thread_id, field, text, sizeof text)) return false;
  const char* at = text;
  return host::take_number(at, out);
}

SystemCall parse_system_call(const char* text) noexcept {
  SystemCall call;
  if (strncmp(text, "running", 7) == 0) {
    call.state = SystemCall::State::kRuns;
    return call;
  }
  const char* p = text;
  if (p[0] == '-' && p[1] == '1' && p[2] == ' ') {
    call.state = SystemCall::State::kOutside;
    p += 2;
  } else if (*p >= '0' && *p <= '9') {
    call.state = SystemCall::State::kInside;
    call.number = static_cast<std::uint16_t>(number_at(p));
    call.argument = number_at(p);
    skip_fields(p, 5);
  } else {
    return call;
  }
  call.sp = number_at(p);
  call.pc = number_at(p);
  if (call.pc == 0) call.state = SystemCall::State::kUnknown;
  return call;
}

ProcessorUse parse_processor_use(const char* text) noexcept {
  ProcessorUse use;
  use.run_ns = number_at(text);
  use.wait_ns = number_at(text);
  use.turns = number_at(text);
  return use;
}

TaskState parse_task_state(const char* text) noexcept {
  TaskState state;
  const char* p = strrchr(text, ')');  // the name may hold spaces and parentheses
  if (p == nullptr || p[1] != ' ' || p[2] == '\0') return state;
  state.state = p[2];
  if (const char* name = strchr(text, '('); name != nullptr && name < p) {
    const auto length = static_cast<std::size_t>(p - name - 1);
    const std::size_t kept = length < sizeof state.name - 1 ? length : sizeof state.name - 1;
    memcpy(state.name, name + 1, kept);
  }
  p += 3;
  state.parent = static_cast<std::uint32_t>(number_at(p));
  skip_fields(p, 7);  // fields 5 to 11
  state.major_faults = number_at(p);
  skip_fields(p, 1);
  state.run_ticks = number_at(p);
  state.run_ticks += number_at(p);
  skip_fields(p, 6);  // 16 to 21
  state.start_ticks = number_at(p);
  skip_fields(p, 19);  // 23 to 41
  state.storage_ticks = number_at(p);
  return state;
}

std::uint32_t process_id_of(const char* name) noexcept {
  std::uint64_t id = 0;
  for (; *name >= '0' && *name <= '9' && id < 1u << 30; ++name) {
    id = id * 10 + static_cast<unsigned>(*name - '0');
  }
  return *name == '\0' ? static_cast<std::uint32_t>(id) : 0;
}

bool proc_has_own_ids() noexcept {
  char name[24];
  const long n = syscall(SYS_readlinkat, AT_FDCWD, "/proc/self", name, sizeof name - 1);
  if (n <= 0) return false;
  name[n] = '\0';
  return process_id_of(name) == static_cast<std::uint32_t>(getpid());
}

TaskState state_of_process(std::uint32_t process_id) noexcept {
  Path path;
  path.add("/proc/").add(process_id).add("/stat");
  char text[512];
  return read_file(path, text, sizeof text) == 0 ? TaskState{} : parse_task_state(text);
}

std::size_t command_line_of(std::uint32_t process_id, char* text, std::size_t size) noexcept {
  Path path;
  path.add("/proc/").add(process_id).add("/cmdline");
  return read_file(path, text, size);
}

namespace {

recording::GapFile kind_of_file(const Path& path) noexcept {
  using recording::GapFile;
  struct statx found;  // asks no server
  if (syscall(SYS_statx, AT_FDCWD, path.text(), AT_STATX_DONT_SYNC, STATX_TYPE, &found) != 0) {
    return GapFile::kNone;
  }
  switch (found.stx_mode & S_IFMT) {
    case S_IFREG: return GapFile::kFile;
    case S_IFIFO: return GapFile::kPipe;
    case S_IFSOCK: return GapFile::kSocket;
    case S_IFCHR: return GapFile::kCharacter;
    default: return GapFile::kOther;
  }
}

}  // namespace

recording::GapFile kind_of_descriptor(std::uint32_t thread_id, std::uint64_t descriptor) noexcept {
  Path path;
  path.add("/proc/self/task/").add(thread_id).add("/fd/").add(descriptor);
  return kind_of_file(path);
}

recording::GapFile kind_of_process_descriptor(std::uint32_t process_id,
                                              std::uint64_t descriptor) noexcept {
  Path path;
  path.add("/proc/").add(process_id).add("/fd/").add(descriptor);
  return kind_of_file(path);
}

bool takes_descriptor(std::uint16_t system_call) noexcept {
  switch (system_call) {
    case SYS_read:
    case SYS_write:
    case SYS_pread64:
    case SYS_pwrite64:
    case SYS_readv:
    case SYS_writev:
    case SYS_preadv:
    case SYS_pwritev:
    case SYS_fsync:
    case SYS_fdatasync:
    case SYS_ftruncate:
    case SYS_flock:
    case SYS_getdents64: return true;
    default: return false;
  }
}

}  // namespace gpubusy::runtime::gaps
