// SPDX-License-Identifier: Apache-2.0
//
// The starting of an exporter alone, as a library for tests that put a program of their own in the
// exporter's place (../bin/gpubusy, seen from this library).
#include <dlfcn.h>

#include "runtime/detached_export.hpp"

using namespace gpubusy::runtime;

extern "C" __attribute__((visibility("default"))) const char* start_windows(const char* recording,
                                                                            unsigned first,
                                                                            unsigned last) {
  Dl_info info{};
  dladdr(reinterpret_cast<void*>(&start_windows), &info);
  const ExportStart result = start_export(info.dli_fname, recording, first, last);
  return result == ExportStart::kStarted ? "started" : why_not_started(result);
}
extern "C" __attribute__((visibility("default"))) int is_running() { return export_is_running(); }
