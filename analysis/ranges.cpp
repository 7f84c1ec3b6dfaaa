// SPDX-License-Identifier: Apache-2.0
#include "analysis/ranges.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <utility>

#include <fmt/format.h>

namespace gpubusy::analysis {

using recording::Range;
using recording::RangeKind;
using recording::RangePayload;
using recording::Recording;

const std::string& range_text(const Recording& recording, std::uint32_t id) {
  static const std::string kNone;
  const auto found = recording.range_texts.find(id);
  return found == recording.range_texts.end() ? kNone : found->second;
}

const std::string& range_name(const Recording& recording, const Range& range) {
  static const std::string kNameless = "(no name)";
  const std::string& text = range_text(recording, range.text);
  return text.empty() ? kNameless : text;
}

std::string range_payload(const Range& range) {
  const auto real = [](double value) {
    if (std::isnan(value)) return std::string("\"NaN\"");
    if (std::isinf(value)) return std::string(value > 0 ? "\"Infinity\"" : "\"-Infinity\"");
    return fmt::format("{}", value);
  };
  switch (range.payload_type) {
    case RangePayload::kUint64:
    case RangePayload::kBytes: return fmt::format("{}", range.payload);
    case RangePayload::kInt64: return fmt::format("{}", static_cast<std::int64_t>(range.payload));
    case RangePayload::kDouble: return real(std::bit_cast<double>(range.payload));
    case RangePayload::kUint32: return fmt::format("{}", static_cast<std::uint32_t>(range.payload));
    case RangePayload::kInt32: return fmt::format("{}", static_cast<std::int32_t>(range.payload));
    case RangePayload::kFloat:
      return real(std::bit_cast<float>(static_cast<std::uint32_t>(range.payload)));
    case RangePayload::kNone: break;
  }
  return {};
}

std::vector<RangeRow> range_rows(const Recording& recording, const Timeline& timeline,
                                 const std::vector<Step>& steps, std::int16_t device) {
  std::uint64_t wall_ns = 0;
  for (const Step& step : steps) wall_ns += step.wall_ns();
  const auto line = timeline.devices.find(device);
  std::map<std::pair<std::string_view, std::string_view>, RangeRow> rows;
  for (const Range& range : recording.ranges) {
    if (range.kind == RangeKind::kMark) continue;
    auto step = std::partition_point(steps.begin(), steps.end(),
                                     [&](const Step& s) { return s.end_ns <= range.start_ns; });
    RangeRow* row = nullptr;
    std::uint64_t inside = 0;
    for (; step != steps.end() && step->begin_ns < range.end_ns; ++step) {
      if (row == nullptr) {
        const std::string& domain = range_text(recording, range.domain);
        const std::string& name = range_name(recording, range);
        row = &rows[{domain, name}];
        row->domain = domain;
        row->name = name;
        ++row->count;
        if (range.payload_type == RangePayload::kBytes) row->bytes += range.payload;
      }
      const std::uint64_t begin = std::max(range.start_ns, step->begin_ns);
      const std::uint64_t end = std::min(range.end_ns, step->end_ns);
      inside += end - begin;
      if (line == timeline.devices.end()) continue;
      row->gpu_idle_ns += end - begin - covered(line->second.busy, begin, end);
    }
    if (row == nullptr) continue;
    row->total_ns += inside;
    row->longest_ns = std::max(row->longest_ns, inside);
  }
  std::vector<RangeRow> out;
  for (auto& [key, row] : rows) {
    row.share = wall_ns ? static_cast<double>(row.total_ns) / static_cast<double>(wall_ns) : 0;
    out.push_back(std::move(row));
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const RangeRow& a, const RangeRow& b) { return a.total_ns > b.total_ns; });
  return out;
}

}  // namespace gpubusy::analysis
