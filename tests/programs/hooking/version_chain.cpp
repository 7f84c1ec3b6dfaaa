// SPDX-License-Identifier: Apache-2.0
//
// chain_step@CHAIN_1, once as the first of two libraries, which asks for the next of that version.
// A dlvsym that libc takes for a call from elsewhere finds the first again, without end.
#include <dlfcn.h>

extern "C" int chain_step(int depth) {
#ifdef FIRST
  if (depth > 10) return -1;
  auto* next = reinterpret_cast<int (*)(int)>(dlvsym(RTLD_NEXT, "chain_step", "CHAIN_1"));
  return next == nullptr ? -2 : 100 + next(depth + 1);
#else
  return depth;
#endif
}
