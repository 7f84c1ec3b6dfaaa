// SPDX-License-Identifier: Apache-2.0
#include "runtime/native/capture.hpp"

#include "runtime/keep_errno.hpp"
#include "runtime/stack_table.hpp"

namespace gpubusy::runtime::native {

[[gnu::noinline]] std::uint32_t capture_native_stack(DefinitionSink& sink,
                                                     ThreadStack& stack) noexcept {
  KeepErrno keep;
  const std::uint32_t epoch = stack_epoch();
  const End end = stack.walk(current_registers());
  if (end == End::kBusy) return 0;
  Frame* frames = stack.frames();
  const int count = stack.count();
  if (stack.node_epoch != epoch) [[unlikely]] {
    for (int i = 0; i < count; ++i) frames[i].node = 0;
    stack.node_epoch = epoch;
  }
  int known = count;
  while (known > 0 && frames[known - 1].node == 0) --known;
  std::uint32_t node = known == 0 ? 0 : frames[known - 1].node;
  for (int i = known; i < count; ++i) {
    const bool cut = i == 0 && end != End::kOutermost;
    const std::uint64_t location = frames[i].pc + (frames[i].interrupted ? 1 : 0);
    const std::uint32_t next = intern_native_frame(sink, node, location, cut);
    if (next == 0) break;
    node = frames[i].node = next;
  }
  return node;
}

}  // namespace gpubusy::runtime::native
