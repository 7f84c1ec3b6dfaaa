// SPDX-License-Identifier: Apache-2.0
//
// What the launcher needs of stacks: tables by line and so on, and exports of stacks as files.
// Nothing here prints. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "analysis/api.hpp"
#include "analysis/stacks/tables.hpp"
#include "analysis/stacks/weights.hpp"
#include "analysis/symbols/native_names.hpp"
#include "recording/recording.hpp"

namespace gpubusy::analysis {

struct CostTableOptions {
  GroupBy by = GroupBy::kLine;
  std::size_t top = 20;  // rows; 0: all
  SymbolOptions symbols;
};

// One table per process with calls.
std::string render_tables(const recording::Session& session, const CostTableOptions& table,
                          const TextOptions& text);
// {"schema": 1, "by": …, "processes": […]}, ends with a newline. Times in ms.
std::string render_tables_json(const recording::Session& session, const CostTableOptions& table);

enum class StackFormat : std::uint8_t { kFolded, kPprof };

struct StackExportOptions {
  std::string directory;  // must exist; empty: the session's directory
  StackFormat format = StackFormat::kFolded;
  Weight weight = Weight::kDeviceTime;  // of folded stacks; pprof has all
  SymbolOptions symbols;
};
struct StackExportResult {
  std::vector<std::string> written;
  std::vector<recording::Error> problems;
};

// One file per process with calls in judged steps. Existing files are never overwritten.
StackExportResult export_stacks(const recording::Session& session,
                                const StackExportOptions& options);

}  // namespace gpubusy::analysis
