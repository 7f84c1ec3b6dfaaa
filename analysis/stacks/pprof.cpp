// SPDX-License-Identifier: Apache-2.0
#include "analysis/stacks/pprof.hpp"

#include <cstdint>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "analysis/chrome_trace/chrome_trace.hpp"

namespace gpubusy::analysis {
namespace {

using recording::FrameKind;
using recording::Module;
using recording::Recording;

// One message of Protocol Buffers' wire format.
class Message {
 public:
  void number(std::uint32_t field, std::uint64_t value) {
    if (value == 0) return;  // the default is not written
    varint(field << 3);
    varint(value);
  }
  void bytes(std::uint32_t field, std::string_view value) {
    varint(field << 3 | 2);
    varint(value.size());
    out_ += value;
  }
  void message(std::uint32_t field, const Message& value) { bytes(field, value.out_); }
  void packed(std::uint32_t field, const std::vector<std::uint64_t>& values) {
    Message all;
    for (const std::uint64_t value : values) all.varint(value);
    bytes(field, all.out_);
  }
  std::string take() { return std::move(out_); }

 private:
  void varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) out_ += static_cast<char>(value | 0x80);
    out_ += static_cast<char>(value);
  }
  std::string out_;
};

// The fields of profile.proto that are used.
namespace field {
enum Profile : std::uint32_t {
  kSampleType = 1,
  kSample = 2,
  kMapping = 3,
  kLocation = 4,
  kFunction = 5,
  kStringTable = 6,
  kTimeNanos = 9,
  kDurationNanos = 10,
  kComment = 13,
  kDefaultSampleType = 14,
};
enum ValueType : std::uint32_t { kType = 1, kUnit = 2 };
enum Sample : std::uint32_t { kLocationId = 1, kValue = 2 };
enum Mapping : std::uint32_t {
  kMappingId = 1,
  kMemoryStart = 2,
  kMemoryLimit = 3,
  kFilename = 5,
  kBuildId = 6,
  kHasFunctions = 7,
  kHasInlineFrames = 10,
};
enum Location : std::uint32_t { kId = 1, kMappingOf = 2, kAddress = 3, kLine = 4 };
enum Line : std::uint32_t { kFunctionId = 1, kLineNumber = 2 };
enum Function : std::uint32_t {
  kFunctionIdOf = 1,
  kName = 2,
  kSystemName = 3,
  kFunctionFile = 4,
  kStartLine = 5,
};
}  // namespace field

class Encoder {
 public:
  Encoder(const Recording& recording, Stacks& stacks) : recording_(recording), stacks_(stacks) {
    text("");
  }

  std::string run(const Judged& judged, const StackWeights& weights) {
    for (const auto& [type, unit] : kTypes) {
      Message value;
      value.number(field::kType, text(type));
      value.number(field::kUnit, text(unit));
      out_.message(field::kSampleType, value);
    }
    for (StackId stack = 0; stack < weights.by_stack.size(); ++stack) {
      const Sums& s = weights.by_stack[stack];
      if (s == Sums{}) continue;
      Message sample;
      sample.packed(field::kLocationId, locations(stack));
      sample.packed(field::kValue, {s.launches, s.copies, s.calls, s.host_ns, s.device_ns,
                                    s.idle_ns, s.allocated_bytes});
      out_.message(field::kSample, sample);
    }
    for (const auto& [module, id] : modules_) add_mapping(*module, id);
    const std::vector<Step>& steps = judged.selection.steps;
    if (!steps.empty()) {
      std::uint64_t wall = 0;
      for (const Step& step : steps) wall += step.wall_ns();
      out_.number(field::kTimeNanos, unix_time(recording_, steps.front().begin_ns));
      out_.number(field::kDurationNanos, wall);
    }
    std::string command = "gpubusy:";
    for (const std::string& word : recording_.command_line) command += ' ' + word;
    out_.number(field::kComment, text(command));
    out_.number(field::kDefaultSampleType, text("device_time"));
    for (const std::string_view string : strings_) out_.bytes(field::kStringTable, string);
    return out_.take();
  }

 private:
  static constexpr std::pair<const char*, const char*> kTypes[] = {{"launches", "count"},
                                                                   {"copies", "count"},
                                                                   {"calls", "count"},
                                                                   {"host_time", "nanoseconds"},
                                                                   {"device_time", "nanoseconds"},
                                                                   {"gpu_idle", "nanoseconds"},
                                                                   {"allocated", "bytes"}};

  std::uint64_t text(const std::string& string) {
    const auto [it, fresh] = string_ids_.try_emplace(string, strings_.size());
    if (fresh) strings_.push_back(it->first);
    return it->second;
  }

  // Innermost first. The frames of one address, which the compiler inlined, are one location.
  std::vector<std::uint64_t> locations(StackId stack) {
    std::vector<std::uint64_t> out;
    const std::vector<Stacks::Place> places = stacks_.places(stack);
    for (std::size_t i = 0; i < places.size();) {
      std::size_t end = i + 1;
      while (end < places.size() && places[end].node >> 16 == places[i].node >> 16) ++end;
      const auto node =
          recording_.stack_nodes.find(static_cast<std::uint32_t>(places[i].node >> 16));
      std::vector<FrameId> frames;
      for (; i < end; ++i) frames.push_back(places[i].frame);
      const bool native = stacks_.frame(frames.front()).kind == FrameKind::kNative;
      out.push_back(location(native ? node->second.location - 1 : 0, frames));
    }
    if (out.empty()) out.push_back(unknown_location());
    return out;
  }

  // `address`: of the call; 0: Python has none.
  std::uint64_t location(std::uint64_t address, const std::vector<FrameId>& frames) {
    const auto [it, fresh] = locations_.try_emplace({address, frames}, locations_.size() + 1);
    if (!fresh) return it->second;
    Message out;
    out.number(field::kId, it->second);
    if (const Module* module = address == 0 ? nullptr : module_at(recording_, address)) {
      out.number(field::kMappingOf,
                 modules_.try_emplace(module, modules_.size() + 1).first->second);
    }
    out.number(field::kAddress, address);
    for (const FrameId frame : frames) {
      const Frame& f = stacks_.frame(frame);
      if (f.function.empty()) continue;  // the reader may know better than we do
      Message line;
      line.number(field::kFunctionId, function(f.function, f.file, f.first_line));
      line.number(field::kLineNumber, static_cast<std::uint64_t>(f.line));
      out.message(field::kLine, line);
    }
    out_.message(field::kLocation, out);
    return it->second;
  }

  std::uint64_t unknown_location() {
    const auto [it, fresh] =
        locations_.try_emplace({0, std::vector<FrameId>{}}, locations_.size() + 1);
    if (!fresh) return it->second;
    Message line, out;
    line.number(field::kFunctionId, function("unknown", "", 0));
    out.number(field::kId, it->second);
    out.message(field::kLine, line);
    out_.message(field::kLocation, out);
    return it->second;
  }

  std::uint64_t function(const std::string& name, const std::string& file, int first_line) {
    const auto [it, fresh] =
        functions_.try_emplace({name, file, first_line}, functions_.size() + 1);
    if (!fresh) return it->second;
    Message out;
    out.number(field::kFunctionIdOf, it->second);
    out.number(field::kName, text(name));
    out.number(field::kSystemName, text(name));
    out.number(field::kFunctionFile, text(file));
    out.number(field::kStartLine, static_cast<std::uint64_t>(first_line));
    out_.message(field::kFunction, out);
    return it->second;
  }

  void add_mapping(const Module& module, std::uint64_t id) {
    Message out;
    out.number(field::kMappingId, id);
    out.number(field::kMemoryStart, module.begin);
    out.number(field::kMemoryLimit, module.end);
    out.number(field::kFilename, text(module.path.empty() ? recording_.executable : module.path));
    out.number(field::kBuildId, text(module.build_id));
    if (stacks_.has_names()) {
      out.number(field::kHasFunctions, 1);
      out.number(field::kHasInlineFrames, 1);
    }
    out_.message(field::kMapping, out);
  }

  const Recording& recording_;
  Stacks& stacks_;
  Message out_;
  std::map<std::string, std::uint64_t> string_ids_;
  std::vector<std::string_view> strings_;
  std::map<std::pair<std::uint64_t, std::vector<FrameId>>, std::uint64_t> locations_;
  std::map<std::tuple<std::string, std::string, int>, std::uint64_t> functions_;
  std::map<const Module*, std::uint64_t> modules_;
};

}  // namespace

std::string pprof_profile(const Recording& recording, const Judged& judged, Stacks& stacks,
                          const StackWeights& weights) {
  return Encoder(recording, stacks).run(judged, weights);
}

}  // namespace gpubusy::analysis
