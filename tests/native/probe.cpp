// SPDX-License-Identifier: Apache-2.0
//
// For programs that load it (python_frames.py): is our stack from here the same as glibc's?
#include <cstdio>

#include "tests/native/walk.hpp"

using namespace gpubusy::test;

extern "C" [[gnu::visibility("default")]] void gpubusy_native_start() {
  use_objects(true);
  native::set_up_walker(0, 0);
}

// Number of frames; negative where they differ or the outermost was not reached.
extern "C" [[gnu::visibility("default")]] int gpubusy_native_compare() {
  const Walked ours = walk_here(), plain = walk_here(false);
  const std::vector<std::uintptr_t> theirs = glibc_here();
  const auto count = static_cast<int>(ours.pcs.size());
  const auto same = [](const std::vector<std::uintptr_t>& a, const std::vector<std::uintptr_t>& b) {
    for (std::size_t i = 1; i < a.size() || i < b.size(); ++i) {
      if (i >= a.size() || i >= b.size() || a[i] != b[i]) {
        std::fprintf(stderr, "frame %zu of %zu and %zu\n", i, a.size(), b.size());
        return false;
      }
    }
    return true;
  };
  if (ours.end != native::End::kOutermost) std::fprintf(stderr, "end %d\n", int(ours.end));
  return ours.end == native::End::kOutermost && same(ours.pcs, plain.pcs) && same(ours.pcs, theirs)
             ? count
             : -count;
}
