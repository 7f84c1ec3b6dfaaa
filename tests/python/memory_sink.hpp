// SPDX-License-Identifier: Apache-2.0
//
// Definitions of stacks in memory instead of a recording. Thread-safe.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <unordered_map>

#include "analysis/python_lines.hpp"
#include "runtime/definitions.hpp"

namespace gpubusy::test {

using runtime::DefinitionSink;
using runtime::Part;

class MemorySink final : public DefinitionSink {
 public:
  bool define(recording::RecordHeader* record, std::size_t fixed_size, const Part* parts,
              std::size_t part_count) noexcept override {
    std::lock_guard guard(mutex_);
    if (refuse_) return false;
    if (record->type == recording::RecordType::kCode) {
      Code code;
      std::memcpy(&code.record, record, sizeof code.record);
      if (fixed_size != sizeof code.record || part_count != 3) return false;
      std::string* texts[] = {&code.file, &code.name, &code.table};
      for (std::size_t i = 0; i < 3; ++i) {
        texts[i]->assign(static_cast<const char*>(parts[i].data), parts[i].size);
      }
      codes_[record->value] = std::move(code);
    } else if (record->type == recording::RecordType::kStackNode) {
      recording::StackNodeRecord node;
      std::memcpy(&node, record, sizeof node);
      nodes_[record->value] = node;
    }
    return true;
  }

  // "file\x1fname\x1fline\x1foffset\x1fflags\x1e" for each frame, innermost first. Native ones have
  // "@address" for a file.
  std::string describe(std::uint32_t id) {
    std::lock_guard guard(mutex_);
    std::string out;
    for (int n = 0; id != 0 && n < 100000; ++n) {
      const auto node = nodes_.find(id);
      if (node == nodes_.end()) return out + "UNDEFINED NODE";
      const recording::StackNodeRecord& r = node->second;
      const std::string flags = '\x1f' + std::to_string(r.flags) + '\x1e';
      id = r.parent;
      if (r.kind == recording::FrameKind::kNative) {
        Dl_info info{};
        dladdr(reinterpret_cast<void*>(r.location - 1), &info);
        out += '@' + std::to_string(r.location) + '\x1f' +
               (info.dli_sname == nullptr ? "" : info.dli_sname) +
               "\x1f"
               "0"
               "\x1f"
               "0" +
               flags;
        continue;
      }
      const auto code = codes_.find(static_cast<std::uint32_t>(r.location >> 32));
      if (code == codes_.end()) return out + "UNDEFINED CODE";
      const Code& c = code->second;
      const auto offset = static_cast<std::uint32_t>(r.location);
      out += c.file + '\x1f' + c.name + '\x1f' +
             std::to_string(
                 analysis::line_of(c.table, c.record.first_line, c.record.python_minor, offset)) +
             '\x1f' + std::to_string(offset) + flags;
    }
    return out;
  }

  void clear() {
    std::lock_guard guard(mutex_);
    codes_.clear();
    nodes_.clear();
  }
  void refuse(bool on) {
    std::lock_guard guard(mutex_);
    refuse_ = on;
  }

 private:
  struct Code {
    recording::CodeRecord record;
    std::string file, name, table;
  };
  std::mutex mutex_;
  bool refuse_ = false;
  std::unordered_map<std::uint32_t, Code> codes_;
  std::unordered_map<std::uint32_t, recording::StackNodeRecord> nodes_;
};

// The one of the loaded module.
MemorySink& sink_of_probe();

}  // namespace gpubusy::test
