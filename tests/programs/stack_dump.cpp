// SPDX-License-Identifier: Apache-2.0
//
// gpubusy_stack_dump RECORDING: the native stack of each call, a line of return addresses,
// innermost first. One that was cut ends in "...".
#include <cinttypes>
#include <cstdio>

#include "recording/recording.hpp"

int main(int count, char** arguments) {
  if (count != 2) return 2;
  const auto recording = gpubusy::recording::read_file(arguments[1]);
  if (!recording) return 1;
  for (const gpubusy::recording::Call& call : recording->calls) {
    bool cut = false;
    for (std::uint32_t id = call.native_stack; id != 0;) {
      const auto& node = recording->stack_nodes.at(id);
      std::printf("%#" PRIx64 " ", node.location);
      cut = (node.flags & 1) != 0;
      id = node.parent;
    }
    std::puts(cut ? "..." : "");
  }
}
