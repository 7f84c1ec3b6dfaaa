// SPDX-License-Identifier: Apache-2.0
//
// The words that documents are made of are those that docs/schema/ tells.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <string>

#include <nlohmann/json.hpp>

#include "analysis/causes.hpp"
#include "analysis/compare/comparison.hpp"
#include "analysis/division.hpp"
#include "analysis/gaps.hpp"
#include "analysis/names.hpp"
#include "analysis/report.hpp"
#include "analysis/workers.hpp"

namespace gpubusy::analysis {
namespace {

using Words = std::set<std::string>;

nlohmann::json schema(const std::string& name) {
  std::ifstream file(std::string(GPUBUSY_TEST_DATA "/../docs/schema/") + name + ".schema.json");
  return nlohmann::json::parse(file);
}

Words words_of(const nlohmann::json& part, const std::string& key) {
  Words out;
  for (const auto& word : part.at("properties").at(key).at("enum")) {
    if (!word.is_null()) out.insert(word.get<std::string>());
  }
  return out;
}

// Of an enum whose values begin at 0 and have no hole; what is beyond has the name of one of them.
template <typename Enum, typename Name>
Words names_of(Name&& name, int values) {
  Words out;
  for (int i = 0; i < values; ++i) out.insert(std::string(name(static_cast<Enum>(i))));
  return out;
}
constexpr int kMore = 64;

TEST(Schema, WordsOfTheReport) {
  const nlohmann::json report = schema("report"), defs = report["$defs"];
  Words classes;
  for (const IdleClass c : kAllIdleClasses) classes.insert(idle_id(c));
  EXPECT_EQ(words_of(defs["idle_row"], "class"), classes);
  EXPECT_EQ(words_of(defs["gap_row"], "class"), classes);
  Words keys;
  for (const auto& [key, value] : defs["idle_ms"]["properties"].items()) keys.insert(key);
  EXPECT_EQ(keys, classes);
  EXPECT_EQ(words_of(defs["idle_row"], "cause"),
            names_of<Cause>([](Cause c) { return cause_id(c); }, static_cast<int>(kCauses)));
  EXPECT_EQ(words_of(defs["gap_row"], "cause"), words_of(defs["idle_row"], "cause"));
  EXPECT_EQ(words_of(defs["gap_row"], "kind"),
            names_of<GapKind>([](GapKind k) { return gap_id(k); }, kMore));
  EXPECT_EQ(words_of(defs["copy"], "direction"),
            names_of<recording::CopyDirection>(direction_name, kMore));
  EXPECT_EQ(words_of(defs["copy"], "host_memory"),
            names_of<recording::MemoryKind>(memory_kind_name, kMore));
  Words parts, busy, families, told, told_hidden;
  for (std::size_t i = 0; i < kParts; ++i) {
    const auto part = static_cast<Part>(i);
    parts.insert(part_id(part));
    if (is_busy(part)) busy.insert(part_id(part));
    families.insert(part_family(part));
  }
  for (const auto& [key, value] : defs["part_ns"]["properties"].items()) told.insert(key);
  for (const auto& [key, value] : defs["hidden_ns"]["properties"].items()) told_hidden.insert(key);
  EXPECT_EQ(words_of(defs["part"], "part"), parts);
  EXPECT_EQ(words_of(defs["part"], "family"), families);
  EXPECT_EQ(told, parts);
  EXPECT_EQ(told_hidden, busy);
  Words doings;
  for (const auto& [key, value] : defs["loading_shares"]["properties"].items()) doings.insert(key);
  EXPECT_EQ(doings, names_of<Loading>(loading_id, static_cast<int>(kLoadings)));
  EXPECT_EQ(words_of(defs["workers_in_gaps"], "bottleneck"),
            names_of<Bottleneck>(bottleneck_id, static_cast<int>(Bottleneck::kIdle) + 1));
  const nlohmann::json& process = defs["process"];
  EXPECT_EQ(words_of(process, "state"), names_of<recording::FileState>(file_state_name, kMore));
  EXPECT_EQ(words_of(process, "time_source"),
            names_of<recording::TimeSource>(time_source_name, kMore));
  EXPECT_EQ(words_of(process, "step_source"),
            names_of<recording::StepSource>(step_source_name, kMore));
}

TEST(Schema, WordsOfACompare) {
  const nlohmann::json pair = schema("compare")["properties"]["pairs"]["items"];
  Words metrics, described;
  for (const Metric& metric : all_metrics()) metrics.insert(metric.id);
  for (const auto& [key, value] : pair["properties"]["metrics"]["properties"].items()) {
    described.insert(key);
  }
  EXPECT_EQ(described, metrics);
  EXPECT_EQ(words_of(schema("compare")["properties"]["conditions"]["items"], "result"),
            names_of<Judgement>(judgement_id, kMore));
}

}  // namespace
}  // namespace gpubusy::analysis
