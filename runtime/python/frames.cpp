// SPDX-License-Identifier: Apache-2.0
#include "runtime/python/frames.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "runtime/keep_errno.hpp"
#include "runtime/python/layout.hpp"

namespace gpubusy::runtime::python {
namespace {

constinit std::atomic<State> g_state{State::kNoInterpreter};
constinit std::atomic<int> g_minor{0};
constinit std::atomic<bool> g_probing{false};
constinit std::atomic<int> g_failures{0};
constinit std::atomic<unsigned> g_asked{0};
constinit std::atomic<int> g_pretended_minor{0};
constinit Interpreter g_python = {};

const char* text_of(State state) noexcept {
  switch (state) {
    case State::kNoInterpreter: return "No Python interpreter was found in this process.";
    case State::kReady: return "";
    case State::kUnknownVersion:
      return "Python stacks are off: this version of Python is not known (3.8 to 3.14 are).";
    case State::kFreeThreaded:
      return "Python stacks are off: free-threaded builds of Python are not supported.";
    case State::kSelfCheckFailed:
      return "Python stacks are off: this build of Python keeps its frames in another way than "
             "its version says.";
  }
  return "";
}

// ---- reads that cannot fault -------------------------------------------------------------------

// Reads own memory through the kernel: a bad address is an error, not a signal. Old seccomp
// profiles refuse process_vm_readv; a pipe does the same with plain write and read.
class CarefulReader {
 public:
  CarefulReader() noexcept = default;
  ~CarefulReader() {
    if (pipe_[0] >= 0) {
      close(pipe_[0]);
      close(pipe_[1]);
    }
  }
  CarefulReader(const CarefulReader&) = delete;
  CarefulReader& operator=(const CarefulReader&) = delete;

  bool read(std::uintptr_t address, void* out, std::size_t size) noexcept {
    if (address < 4096 || size > 512) return false;
    if (pipe_[0] < 0) {
      iovec local{out, size};
      iovec remote{reinterpret_cast<void*>(address), size};
      const ssize_t n = process_vm_readv(getpid(), &local, 1, &remote, 1, 0);
      if (n == static_cast<ssize_t>(size)) return true;
      if (n >= 0 || errno == EFAULT) return false;
      if (pipe2(pipe_, O_CLOEXEC | O_NONBLOCK) != 0) {
        pipe_[0] = pipe_[1] = -1;
        return false;
      }
    }
    const ssize_t n = write(pipe_[1], reinterpret_cast<const void*>(address), size);
    if (n <= 0) return false;
    return ::read(pipe_[0], out, static_cast<std::size_t>(n)) == n &&
           n == static_cast<ssize_t>(size);
  }
  template <class T>
  bool read(std::uintptr_t address, T& out) noexcept {
    return read(address, &out, sizeof out);
  }

 private:
  int pipe_[2] = {-1, -1};
};

// ---- self-check --------------------------------------------------------------------------------

class SelfCheck {
 public:
  explicit SelfCheck(const Interpreter& python) noexcept : py_(python), l_(python.layout) {}

  enum class Result { kPassed, kFailed, kNoFrames };

  // Follows the thread's chain with careful reads only and tests everything that the walk will
  // later believe.
  Result run(std::uintptr_t thread_state) noexcept {
    std::uintptr_t f = 0;
    if (!reader_.read(thread_state + l_.thread_frame, f)) return Result::kFailed;
    if (l_.has_cframe && (f == 0 || !reader_.read(f + l_.cframe_current, f))) {
      return f == 0 ? Result::kNoFrames : Result::kFailed;
    }
    int real = 0;
    std::uintptr_t cframe = 0;
    if (l_.thread_cframe != 0 && !reader_.read(thread_state + l_.thread_cframe, cframe)) {
      return Result::kFailed;
    }
    for (int i = 0; i < kFrames && f != 0; ++i) {
      // Each frame has one, and there is one behind the last.
      if (l_.thread_cframe != 0 && !reader_.read(cframe + l_.cframe_previous, cframe)) {
        return Result::kFailed;
      }
      bool shim = false;
      if (l_.style != FrameStyle::kFrameObject) {
        std::uint8_t owner = 0;
        if (!reader_.read(f + l_.owner, owner) || owner > 4) return Result::kFailed;
        shim = l_.style == FrameStyle::kShimFrame && owner >= kFirstShimOwner;
      }
      if (!shim) {
        if (!frame_is_sound(f)) return Result::kFailed;
        ++real;
      }
      if (!reader_.read(f + l_.previous, f)) return Result::kFailed;
    }
    return real > 0 ? Result::kPassed : Result::kNoFrames;
  }

 private:
  static constexpr int kFrames = 24;

  bool has_type(std::uintptr_t object, const void* type) noexcept {
    std::uintptr_t found = 0;
    return reader_.read(object + kObjectType, found) &&
           found == reinterpret_cast<std::uintptr_t>(type);
  }

  bool string_is_sound(std::uintptr_t code, int offset, bool may_be_empty) noexcept {
    std::uintptr_t s = 0;
    std::int64_t length = 0;
    std::uint32_t state = 0;
    if (!reader_.read(code + static_cast<unsigned>(offset), s) || !has_type(s, py_.string_type) ||
        !reader_.read(s + kStringLength, length) || !reader_.read(s + kStringState, state)) {
      return false;
    }
    if (length < (may_be_empty ? 0 : 1) || length > 1 << 20) return false;
    if ((state >> 2 & 7) == 0) state >>= 14;  // 3.14 gives 16 bits to `interned`, before it 2
    const unsigned kind = state >> 2 & 7;
    if ((kind != 1 && kind != 2 && kind != 4) || (state >> 5 & 1) == 0) return false;
    if ((state >> 6 & 1) == 0 || length == 0) return true;  // not ASCII
    char text[64] = {};
    const auto n = static_cast<std::size_t>(length < 64 ? length : 64);
    if (!reader_.read(s + l_.ascii_header, text, n)) return false;
    for (std::size_t i = 0; i < n; ++i) {
      if (text[i] < 32 || text[i] > 126) return false;
    }
    return true;
  }

  bool frame_is_sound(std::uintptr_t f) noexcept {
    std::uintptr_t code = 0, table = 0;
    std::int32_t first_line = 0;
    if (!reader_.read(f + l_.code, code)) return false;
    code &= ~std::uintptr_t{7};
    if (!has_type(code, py_.code_type)) return false;
    if (!reader_.read(code + l_.first_line, first_line) || first_line < -1) return false;
    if (!string_is_sound(code, l_.file, true) || !string_is_sound(code, l_.name, true) ||
        !string_is_sound(code, l_.name_qualified, true)) {
      return false;
    }
    if (!reader_.read(code + l_.line_table, table) || !has_type(table, py_.bytes_type)) {
      return false;
    }
    std::int64_t offset = 0, size = 0;
    if (l_.style == FrameStyle::kFrameObject) {
      std::int32_t last = 0;
      std::uintptr_t bytes = 0;
      if (!reader_.read(f + l_.instruction, last) || !reader_.read(code + kCodeBytes, bytes) ||
          !has_type(bytes, py_.bytes_type) || !reader_.read(bytes + kObjectSize, size)) {
        return false;
      }
      offset = last * (l_.minor == 10 ? 2 : 1);
    } else {
      std::uintptr_t instruction = 0;
      std::int32_t first_traceable = 0;
      if (!reader_.read(f + l_.instruction, instruction) ||
          !reader_.read(code + kObjectSize, size) ||
          !reader_.read(code + l_.first_traceable, first_traceable) || first_traceable < 0 ||
          first_traceable > size) {
        return false;
      }
      offset = static_cast<std::int64_t>(instruction - (code + l_.adaptive));
      size *= 2;
    }
    return offset == -1 || (offset >= -2 && offset < size && offset % 2 == 0);
  }

  const Interpreter& py_;
  const Layout& l_;
  CarefulReader reader_;
};

// ---- finding the interpreter -------------------------------------------------------------------

template <class T>
T symbol(const char* name) noexcept {
  return reinterpret_cast<T>(dlsym(RTLD_DEFAULT, name));
}

int version_minor() noexcept {
  if (const int pretended = g_pretended_minor.load(std::memory_order_relaxed)) return pretended;
  if (const auto* number = symbol<const unsigned long*>("Py_Version")) {  // 3.11+
    return *number >> 24 == 3 ? static_cast<int>(*number >> 16 & 0xff) : 0;
  }
  const auto text = symbol<const char* (*)()>("Py_GetVersion");  // a static string
  if (text == nullptr) return 0;
  const char* s = text();
  if (s == nullptr || s[0] != '3' || s[1] != '.') return 0;
  int minor = 0;
  for (s += 2; *s >= '0' && *s <= '9' && minor < 1000; ++s) minor = minor * 10 + (*s - '0');
  return minor;
}

// 3.13+ describe themselves for debuggers. The order of the groups changes per version, the order
// inside the two groups that matter has not: each must occur word for word.
enum class Described { kAgrees, kDiffers, kFreeThreaded };
Described described_by(const Layout& l) noexcept {
  const auto* words = symbol<const std::uint64_t*>("_PyRuntime");
  if (words == nullptr || std::memcmp(words, "xdebugpy", 8) != 0) return Described::kDiffers;
  if (words[2] != 0) return Described::kFreeThreaded;
  const std::uint64_t frame[] = {l.previous, l.code, l.instruction, l.locals, l.owner};
  const std::uint64_t code[] = {l.file, l.name, l.name_qualified, l.line_table, l.first_line};
  // The table is about 600 bytes in 3.13 and lies at the start of a far larger object.
  constexpr int kWords = 72;
  constexpr int kToAdaptive = 8;  // words from the first of `code`
  bool frame_agrees = false, code_agrees = false, thread_agrees = false;
  for (int i = 3; i + kToAdaptive < kWords; ++i) {
    frame_agrees |= std::memcmp(words + i, frame, sizeof frame) == 0;
    code_agrees |=
        std::memcmp(words + i, code, sizeof code) == 0 && words[i + kToAdaptive] == l.adaptive;
    thread_agrees |= words[i] == l.thread_frame;
  }
  return frame_agrees && code_agrees && thread_agrees ? Described::kAgrees : Described::kDiffers;
}

// The offset in the calling thread's state of what pthread_self() gives: other threads' states are
// told by it. It differs by version.
int find_thread_ident(const char* thread_state) noexcept {
  constexpr int kWords = 48;  // all states have as many
  const auto self = static_cast<std::uintptr_t>(pthread_self());
  CarefulReader reader;
  int found = 0;
  for (int offset = 8; offset < kWords * 8; offset += 8) {
    std::uintptr_t word = 0;
    if (!reader.read(reinterpret_cast<std::uintptr_t>(thread_state) + static_cast<unsigned>(offset),
                     word)) {
      return 0;
    }
    if (word != self) continue;
    if (found != 0) return 0;
    found = offset;
  }
  return found;
}

State decide() noexcept {
  Interpreter py = {};
  py.this_thread_state = symbol<void* (*)()>("PyGILState_GetThisThreadState");
  const auto is_initialized = symbol<int (*)()>("Py_IsInitialized");
  if (py.this_thread_state == nullptr || is_initialized == nullptr || is_initialized() == 0) {
    return State::kNoInterpreter;
  }
  const void* thread_state = py.this_thread_state();
  if (thread_state == nullptr) return State::kNoInterpreter;  // not the thread to ask
  const int minor = version_minor();
  g_minor.store(minor, std::memory_order_relaxed);
  // Exported by free-threaded builds alone.
  if (symbol<void*>("_Py_MergeZeroLocalRefcount") != nullptr) return State::kFreeThreaded;
  const Layout* layout = nullptr;
  for (const Layout& l : kLayouts) {
    if (l.minor == minor) layout = &l;
  }
  if (layout == nullptr) return State::kUnknownVersion;
  if (minor >= 13) {
    const Described d = described_by(*layout);
    if (d == Described::kFreeThreaded) return State::kFreeThreaded;
    if (d == Described::kDiffers) return State::kSelfCheckFailed;
  }
  py.layout = *layout;
  py.is_finalizing = symbol<int (*)()>("Py_IsFinalizing");  // 3.13+
  if (py.is_finalizing == nullptr) py.is_finalizing = symbol<int (*)()>("_Py_IsFinalizing");
  py.main_interpreter = symbol<const void* (*)()>("PyInterpreterState_Main");
  py.eval_function = symbol<const void*>("_PyEval_EvalFrameDefault");
  py.code_type = symbol<const void*>("PyCode_Type");
  py.string_type = symbol<const void*>("PyUnicode_Type");
  py.bytes_type = symbol<const void*>("PyBytes_Type");
  py.tuple_type = symbol<const void*>("PyTuple_Type");
  py.list_type = symbol<const void*>("PyList_Type");
  if (py.code_type == nullptr || py.string_type == nullptr || py.bytes_type == nullptr ||
      py.tuple_type == nullptr || py.is_finalizing == nullptr) {
    return State::kSelfCheckFailed;
  }
  switch (SelfCheck(py).run(reinterpret_cast<std::uintptr_t>(thread_state))) {
    case SelfCheck::Result::kNoFrames: return State::kNoInterpreter;
    case SelfCheck::Result::kFailed:
      // Final only when it is no chance event, such as a call from a half-built frame.
      return g_failures.fetch_add(1) < 2 ? State::kNoInterpreter : State::kSelfCheckFailed;
    case SelfCheck::Result::kPassed: break;
  }
  py.thread_ident = find_thread_ident(static_cast<const char*>(thread_state));
  py.runtime = symbol<const void*>("_PyRuntime");
  py.current_state = symbol<void* (*)()>("PyThreadState_GetUnchecked");  // 3.13+
  if (py.current_state == nullptr) {
    py.current_state = symbol<void* (*)()>("_PyThreadState_UncheckedGet");
  }
  g_python = py;
  return State::kReady;
}

State probe_slow() noexcept {
  KeepErrno keep;
  if (g_probing.exchange(true, std::memory_order_acquire)) return State::kNoInterpreter;
  State state = g_state.load(std::memory_order_relaxed);
  if (state == State::kNoInterpreter) {
    state = decide();
    if (state != State::kNoInterpreter) g_state.store(state, std::memory_order_release);
  }
  g_probing.store(false, std::memory_order_release);
  return state;
}

}  // namespace

Support probe() noexcept {
  State state = g_state.load(std::memory_order_acquire);
  if (state == State::kNoInterpreter) [[unlikely]]
    state = probe_slow();
  return {state, g_minor.load(std::memory_order_relaxed), text_of(state)};
}

const Interpreter* ready_interpreter() noexcept {
  return g_state.load(std::memory_order_acquire) == State::kReady ? &g_python : nullptr;
}

const Interpreter* ready_interpreter_or_probe() noexcept {
  const State state = g_state.load(std::memory_order_acquire);
  if (state == State::kReady) [[likely]]
    return &g_python;
  if (state != State::kNoInterpreter) return nullptr;
  // A program without Python must not pay the look-up of symbols at each call.
  const unsigned n = g_asked.fetch_add(1, std::memory_order_relaxed);
  if (n >= 16 && n % 64 != 0) return nullptr;
  return probe_slow() == State::kReady ? &g_python : nullptr;
}

const char* current_thread_state(const Interpreter& python) noexcept {
  const void* thread_state = python.this_thread_state();
  if (thread_state == nullptr) return nullptr;
  // Daemon threads stay in their CUDA calls while Py_Finalize frees their states.
  if (python.is_finalizing() != 0) [[unlikely]] {
    if (syscall(SYS_gettid) != getpid()) return nullptr;
  }
  return static_cast<const char*>(thread_state);
}

namespace {

struct Collector {
  Frame* out;
  int max;
  int count = 0;
  int skipped = 0;
  Chain chain = {};

  // Deep recursion inside one eval call: the entry is behind frames that nobody wants.
  static constexpr int kMaxSkipped = 4096;

  [[gnu::always_inline]] Visit frame(const char* f, const char* code,
                                     std::int32_t offset) noexcept {
    if (count == max) {
      chain.cut = true;
      return out[count - 1].entry != 0 || skipped++ == kMaxSkipped ? Visit::kStop
                                                                   : Visit::kContinue;
    }
    out[count++] = {code, f, offset, 0, 0};
    return Visit::kContinue;
  }
  [[gnu::always_inline]] void entry(std::uintptr_t address) noexcept {
    chain.outermost_entry = address;
    if (count > 0 && out[count - 1].entry == 0) out[count - 1].entry = address;
  }
};

}  // namespace

int walk(Frame* out, int max, Chain* chain) noexcept {
  if (chain != nullptr) *chain = {};
  const Interpreter* python = ready_interpreter_or_probe();
  if (python == nullptr || max <= 0) return 0;
  const char* thread_state = current_thread_state(*python);
  if (thread_state == nullptr) return 0;
  Collector collector{out, max};
  visit_frames(python->layout, thread_state, collector);
  if (chain != nullptr) {
    *chain = collector.chain;
    chain->total =
        collector.skipped > Collector::kMaxSkipped ? 0 : collector.count + collector.skipped;
  }
  return collector.count;
}

std::uintptr_t eval_function() noexcept {
  return reinterpret_cast<std::uintptr_t>(g_python.eval_function);
}

bool has_entries() noexcept {
  const Layout& l = g_python.layout;
  return l.style != FrameStyle::kFrameObject || l.thread_cframe != 0;
}

bool is_in_main_interpreter() noexcept {
  if (g_python.main_interpreter == nullptr) return false;
  const char* thread_state = current_thread_state(g_python);
  return thread_state != nullptr &&
         load<const void*>(thread_state, kThreadInterpreter) == g_python.main_interpreter();
}

void after_fork() noexcept { g_probing.store(false, std::memory_order_relaxed); }

void forget_for_test() noexcept {
  g_state.store(State::kNoInterpreter, std::memory_order_release);
  g_failures.store(0);
  g_asked.store(0);
}

void pretend_minor_for_test(int minor) noexcept { g_pretended_minor.store(minor); }

}  // namespace gpubusy::runtime::python
