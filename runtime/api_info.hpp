// SPDX-License-Identifier: Apache-2.0
//
// What the hook table tells the runtime about itself: one row per intercepted function.
#pragma once

#include <cstdint>

#include "recording/format.hpp"

namespace gpubusy::runtime {

struct ApiInfo {
  const char* name;
  recording::Category category;
  recording::Layer layer;
};

// A stream argument as the caller gave it.
struct StreamArgument {
  void* handle = nullptr;
  bool given = false;       // false: the call has no stream
  bool per_thread = false;  // _ptsz/_ptds: a null handle means the thread's own stream
};

// The real dlsym, found by the preload part: ours would answer with hooks.
using FindSymbol = void* (*)(void* handle, const char* name);

}  // namespace gpubusy::runtime
