// SPDX-License-Identifier: Apache-2.0
//
// Where CPython keeps what we read, per version. Private to runtime/python and the stack table.
//
// Offsets are bytes, for 64-bit release builds with the GIL. 3.8 to 3.13 were printed by programs
// compiled against each version's own headers (a minor version keeps them: extension modules depend
// on it), 3.14 was read from its _Py_DebugOffsets. None of them is believed before the self-check
// in frames.cpp has passed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace gpubusy::runtime::python {

enum class FrameStyle : std::uint8_t {
  kFrameObject,  // 3.8–3.10: PyFrameObject chain at PyThreadState
  kEntryFlag,    // 3.11: _PyInterpreterFrame, the outermost frame of an eval call is flagged
  kShimFrame,    // 3.12+: a shim frame on the C stack stands behind each eval call's frames
};

struct Layout {
  std::uint8_t minor;  // of 3.x
  FrameStyle style;
  bool has_cframe;  // 3.11, 3.12: PyThreadState -> _PyCFrame -> frame
  // PyThreadState, _PyCFrame
  std::uint8_t thread_frame, cframe_current, cframe_previous;
  // PyFrameObject or _PyInterpreterFrame
  std::uint8_t previous, code, instruction, owner, is_entry;
  std::uint16_t locals;
  // PyCodeObject; name_qualified is co_name's offset where there is no co_qualname
  std::uint8_t first_line, file, name, name_qualified, line_table, adaptive, version,
      first_traceable;
  // str and tuple
  std::uint8_t ascii_header, compact_header, tuple_items;
  // 3.10: PyThreadState -> its CFrame, of which each eval call has one; not how frames are found.
  std::uint8_t thread_cframe = 0;
};

// clang-format off
inline constexpr Layout kLayouts[] = {
    {8, FrameStyle::kFrameObject, false, 24, 0, 0, 24, 32, 104, 0, 0, 360,  //
     40, 104, 112, 112, 120, 0, 0, 0, 48, 72, 24},
    {9, FrameStyle::kFrameObject, false, 24, 0, 0, 24, 32, 104, 0, 0, 360,  //
     40, 104, 112, 112, 120, 0, 0, 0, 48, 72, 24},
    {10, FrameStyle::kFrameObject, false, 24, 0, 8, 24, 32, 96, 0, 0, 352,  //
     40, 104, 112, 112, 120, 0, 0, 0, 48, 72, 24, 48},
    {11, FrameStyle::kEntryFlag, true, 56, 8, 16, 48, 32, 56, 69, 68, 72,  //
     72, 112, 120, 128, 136, 184, 0, 168, 48, 72, 24},
    {12, FrameStyle::kShimFrame, true, 56, 0, 8, 8, 0, 56, 70, 0, 72,  //
     68, 112, 120, 128, 136, 192, 92, 176, 40, 56, 24},
    {13, FrameStyle::kShimFrame, false, 72, 0, 0, 8, 0, 56, 70, 0, 72,  //
     68, 112, 120, 128, 136, 200, 92, 184, 40, 56, 24},
    {14, FrameStyle::kShimFrame, false, 72, 0, 0, 8, 0, 56, 74, 0, 80,  //
     68, 112, 120, 128, 136, 208, 92, 192, 40, 56, 32},
};
// clang-format on

// The same in all of them.
inline constexpr int kThreadInterpreter = 16;  // PyThreadState.interp
inline constexpr int kObjectType = 8;          // PyObject.ob_type
inline constexpr int kObjectSize = 16;         // PyVarObject.ob_size
inline constexpr int kStringLength = 16;       // PyASCIIObject.length
inline constexpr int kStringHash = 24;         // PyASCIIObject.hash
inline constexpr int kStringState = 32;        // PyASCIIObject.state
inline constexpr int kBytesData = 32;          // PyBytesObject.ob_sval
inline constexpr int kCodeBytes = 48;          // PyCodeObject.co_code (3.8–3.10)
inline constexpr std::uint8_t kOwnedByGenerator = 1;
inline constexpr std::uint8_t kFirstShimOwner = 3;  // frames on the C stack, and sentinels (3.14)

template <class T>
inline T load(const void* base, int offset) noexcept {
  T value;
  std::memcpy(&value, static_cast<const char*>(base) + offset, sizeof value);
  return value;
}

// How frames and codes are read: the calling thread's own directly, another thread's through
// RemoteMemory (remote.hpp), which has the same functions.
struct OwnMemory {
  template <class T>
  [[gnu::always_inline]] T load(const void* base, int offset) const noexcept {
    return python::load<T>(base, offset);
  }
  // `size` bytes at `at`, in place or copied to `scratch`; nullptr where they cannot be read.
  const char* bytes(const char* at, std::size_t, char*) const noexcept { return at; }
};

// 3.14 keeps tag bits in a frame's references; pointers to objects are 16-aligned in all versions
// (8 for static ones).
template <class Memory>
[[gnu::always_inline]] inline const char* load_reference(Memory& memory, const void* base,
                                                         int offset) noexcept {
  return reinterpret_cast<const char*>(memory.template load<std::uintptr_t>(base, offset) &
                                       ~std::uintptr_t{7});
}
inline const char* load_reference(const void* base, int offset) noexcept {
  OwnMemory own;
  return load_reference(own, base, offset);
}

struct Interpreter {
  Layout layout;
  void* (*this_thread_state)();
  int (*is_finalizing)();
  const void* (*main_interpreter)();  // may be missing
  const void* eval_function;          // may be missing
  const void* code_type;
  const void* string_type;
  const void* bytes_type;
  const void* tuple_type;
  const void* list_type;  // may be missing
  int thread_ident;       // offset in PyThreadState of what pthread_self() gives; 0: not found
  const void* runtime;    // _PyRuntime, in which the GIL's lock lies; nullptr: not found
  // The state of the thread that holds the GIL, from 3.12 on only if the caller does; may be
  // missing
  void* (*current_state)();
};

// Whether a lock is the interpreter's own, as the GIL's: these lie in _PyRuntime, which has 170 kB
// in 3.11 and less than this in any version.
inline bool lies_in_runtime(const Interpreter& python, std::uint64_t address) noexcept {
  constexpr std::uintptr_t kRuntimeBytes = 512 * 1024;
  return python.runtime != nullptr &&
         address - reinterpret_cast<std::uintptr_t>(python.runtime) < kRuntimeBytes;
}

// Filled in once by probe(); nullptr until it said kReady.
const Interpreter* ready_interpreter() noexcept;

// The same, but asks probe() while nothing is decided: at the first 16 calls, then at each 64th.
const Interpreter* ready_interpreter_or_probe() noexcept;

// The calling thread's state, or nullptr where there can be no Python frames: a thread that Python
// does not know, or a thread other than the main one while the interpreter ends (its state may be
// freed under it).
const char* current_thread_state(const Interpreter& python) noexcept;

enum class Visit : bool { kStop, kContinue };

// Calls visitor.frame(frame, code, offset) for each frame of the thread, innermost first, and
// visitor.entry(address) behind the outermost frame of each eval call, with an address inside the
// C frame of that call (0 where the version has none). Reads only memory of frames that are alive
// because this thread is inside them.
template <FrameStyle kStyle, class Visitor, class Memory>
[[gnu::always_inline]] inline void visit_frames_as(const Layout& l, const char* thread_state,
                                                   Visitor&& visitor, Memory& memory) noexcept {
  const auto word = [&memory](const void* base, int offset) {
    return memory.template load<const char*>(base, offset);
  };
  if constexpr (kStyle == FrameStyle::kFrameObject) {
    const int unit = l.minor == 10 ? 2 : 1;  // 3.10 counts instructions, before it bytes
    const char* cframe = l.thread_cframe != 0 ? word(thread_state, l.thread_cframe) : nullptr;
    for (const char* f = word(thread_state, l.thread_frame); f != nullptr;
         f = word(f, l.previous)) {
      const int offset = memory.template load<int>(f, l.instruction) * unit;
      if (visitor.frame(f, word(f, l.code), offset) == Visit::kStop) return;
      visitor.entry(reinterpret_cast<std::uintptr_t>(cframe));
      if (cframe != nullptr) cframe = word(cframe, l.cframe_previous);
    }
  } else {
    const char* cframe = nullptr;
    const char* f;
    if (l.has_cframe) {
      cframe = word(thread_state, l.thread_frame);
      if (cframe == nullptr) return;
      f = word(cframe, l.cframe_current);
    } else {
      f = word(thread_state, l.thread_frame);
    }
    for (; f != nullptr; f = word(f, l.previous)) {
      const auto owner = memory.template load<std::uint8_t>(f, l.owner);
      if (kStyle == FrameStyle::kShimFrame && owner >= kFirstShimOwner) {
        visitor.entry(reinterpret_cast<std::uintptr_t>(f));
        continue;
      }
      const char* code = load_reference(memory, f, l.code);
      const std::int64_t offset = memory.template load<std::intptr_t>(f, l.instruction) -
                                  (reinterpret_cast<std::intptr_t>(code) + l.adaptive);
      // Not traceable yet: Python's own tracebacks leave such a frame out. The prologue is short,
      // so the code object need not be touched for most frames.
      const bool incomplete =
          offset < 64 && owner != kOwnedByGenerator &&
          offset < 2 * std::int64_t{memory.template load<int>(code, l.first_traceable)};
      if (!incomplete &&
          visitor.frame(f, code, static_cast<std::int32_t>(offset)) == Visit::kStop) {
        return;
      }
      if (kStyle == FrameStyle::kEntryFlag &&
          memory.template load<std::uint8_t>(f, l.is_entry) != 0 && cframe != nullptr) {
        visitor.entry(reinterpret_cast<std::uintptr_t>(cframe));
        cframe = word(cframe, l.cframe_previous);
      }
    }
  }
}

template <class Visitor, class Memory>
[[gnu::always_inline]] inline void visit_frames(const Layout& l, const char* thread_state,
                                                Visitor&& visitor, Memory& memory) noexcept {
  switch (l.style) {
    case FrameStyle::kFrameObject:
      return visit_frames_as<FrameStyle::kFrameObject>(l, thread_state, visitor, memory);
    case FrameStyle::kEntryFlag:
      return visit_frames_as<FrameStyle::kEntryFlag>(l, thread_state, visitor, memory);
    case FrameStyle::kShimFrame:
      return visit_frames_as<FrameStyle::kShimFrame>(l, thread_state, visitor, memory);
  }
}

// The calling thread's own.
template <class Visitor>
[[gnu::always_inline]] inline void visit_frames(const Layout& l, const char* thread_state,
                                                Visitor&& visitor) noexcept {
  OwnMemory own;
  visit_frames(l, thread_state, visitor, own);
}

// Tells code objects apart that stood at the same address one after the other (3,000 exec'd
// functions share some 500 addresses). From 3.12 on each code object has a number of its own;
// before that, what is cheap to read and differs: without the name's hash exec'd functions get
// mixed up. Never 0.
template <class Memory>
[[gnu::always_inline]] inline std::uint64_t fingerprint(const Layout& l, const char* code,
                                                        Memory& memory) noexcept {
  if (l.version != 0) {
    const auto first = memory.template load<std::uint32_t>(code, l.first_line);
    return (std::uint64_t{first} << 32 | memory.template load<std::uint32_t>(code, l.version)) |
           1u << 31;
  }
  const auto* name = memory.template load<const char*>(code, l.name);
  std::uint64_t h = memory.template load<std::uint32_t>(code, l.first_line) * 0x9e3779b97f4a7c15ull;
  h ^= memory.template load<std::uint64_t>(
      code, kObjectSize);  // 3.11: number of instructions; else counts
  h ^= memory.template load<std::uint64_t>(code, l.file);
  h ^= memory.template load<std::uint64_t>(code, l.line_table) * 7;
  h ^= memory.template load<std::uint64_t>(name, kStringHash) * 3;
  return h | 1;
}

[[gnu::always_inline]] inline std::uint64_t fingerprint(const Layout& l,
                                                        const char* code) noexcept {
  OwnMemory own;
  return fingerprint(l, code, own);
}

}  // namespace gpubusy::runtime::python
