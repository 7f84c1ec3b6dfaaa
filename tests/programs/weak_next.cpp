// SPDX-License-Identifier: Apache-2.0
//
// LLVM OpenMP's ompt_start_tool in small: each library of a chain defines the same weak function,
// which looks for the next one. Built three times with CHAIN_NAME "A", "B", "C".
#include <dlfcn.h>

#include <cstdio>

extern "C" [[gnu::weak]] void chained() {
  std::printf("%s ", CHAIN_NAME);
  std::fflush(stdout);
  if (auto* next = reinterpret_cast<void (*)()>(dlsym(RTLD_NEXT, "chained"))) next();
}
