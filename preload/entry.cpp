// SPDX-License-Identifier: Apache-2.0
//
// Where the library begins. Every process that inherits the preload runs the constructor, most of
// them shells and helpers: it reads the environment and no more.
#include "preload/api.hpp"
#include "runtime/recorder.hpp"

namespace {

[[gnu::constructor]] void start() { gpubusy::preload::ensure_started(); }

// exit() has run our atexit handler already; this is for a library that is unloaded otherwise.
[[gnu::destructor]] void finish() { gpubusy::runtime::finish_process(); }

}  // namespace
