// SPDX-License-Identifier: Apache-2.0
//
// When an exception, or the forced unwinding of a cancelled thread, leaves a hook, the thread must
// be known to be outside again. A destructor would do that, but needs the C++ runtime: a static
// copy of libgcc aborts when the program's own copy unwinds through it (_Unwind_SetGR with a
// register table that was never set up), and a dynamic one would be loaded into C programs. So the
// hooks have a personality routine of their own, which only resets the guard and lets the unwinder
// go on.
#pragma once

// Stands in the body of each function that calls the real one; 0x1b: pc-relative, 4 bytes signed.
#define GPUBUSY_RESET_ON_UNWIND() asm volatile(".cfi_personality 0x1b, gpubusy_unwind_personality")
