// SPDX-License-Identifier: Apache-2.0
//
// The Python frames of the calling thread, read straight from the interpreter's memory: no lock, no
// GIL, no allocation, no call into Python but PyGILState_GetThisThreadState (reads one TLS value).
// Thread-safe. Nothing here changes errno.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpubusy::runtime::python {

enum class State : std::uint8_t {
  kNoInterpreter,  // none (yet), or no thread with Python frames has asked yet
  kReady,
  kUnknownVersion,  // this and the following are final: native stacks only
  kFreeThreaded,
  kSelfCheckFailed,
};

struct Support {
  State state;
  int minor;         // of CPython 3.x, 0: not known
  const char* text;  // static; a full sentence for a notice where Python stacks are off
};

// Decides at the first call from a thread that is inside Python code, by a look at that thread's
// own frames. Decided: one load. While there is no interpreter it looks up symbols (about 1 µs,
// dlsym): call it rarely then.
Support probe() noexcept;

struct Frame {
  const void* code;       // PyCodeObject
  const void* frame;      // PyFrameObject (3.8–3.10) or _PyInterpreterFrame
  std::int32_t offset;    // of the current instruction, in bytes from the code's start
  std::uint32_t code_id;  // for whoever numbers codes
  std::uintptr_t entry;   // set on the outermost frame of an eval call: an address inside the C
                          // frame of that call (3.10+, else 0)
};

struct Chain {
  bool cut = false;                    // there were more frames
  int total = 0;                       // how many, 0: more than one cares to count
  std::uintptr_t outermost_entry = 0;  // of all eval calls, also of those without a frame to show
};

// Innermost first. Returns the number of frames, at most max. 0 on threads that Python does not
// know, after Py_Finalize, and while probe() is not kReady (walk asks it now and then). The last
// frame of a chain that was cut has the entry of the eval call it belongs to, if that was near.
int walk(Frame* out, int max, Chain* chain = nullptr) noexcept;

// _PyEval_EvalFrameDefault, the function that runs frames; 0: not known. Python must be kReady.
std::uintptr_t eval_function() noexcept;
// Have frames of this version an entry?
bool has_entries() noexcept;
// Is the thread's state, whose frames walk() gives, of the main interpreter? A thread that runs a
// subinterpreter leaves the frames of the main one behind it.
bool is_in_main_interpreter() noexcept;

// In the child of a fork: a thread of the parent may have been inside probe().
void after_fork() noexcept;

// For tests: forgets the decision. Only while no other thread is inside.
void forget_for_test() noexcept;
// For tests: pretend that the interpreter is of this minor version (0: no pretence).
void pretend_minor_for_test(int minor) noexcept;

}  // namespace gpubusy::runtime::python
