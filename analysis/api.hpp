// SPDX-License-Identifier: Apache-2.0
//
// What the launcher needs of analysis: load a session, judge it, render it, export its traces.
// Nothing here prints; nothing throws but std::bad_alloc. Thread-safety: functions may run in
// parallel on different objects; a Session or SessionReport may be read by many threads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <tl/expected.hpp>

#include "analysis/symbols/native_names.hpp"
#include "recording/recording.hpp"

namespace gpubusy::analysis {

struct SessionReport;  // analysis/report.hpp: every number of the verdict, as data

// A directory with recordings, one recording, or a trace of torch.profiler (.json, .json.gz).
// `run`: see recording::read_session.
tl::expected<recording::Session, recording::Error> load_session(const std::string& path,
                                                                std::uint64_t run = 0);

struct AnalysisOptions {
  bool predictions = false;  // also of what all cures together would bring, for the HTML report
};
// Judges all processes of a session. The report does not refer to the session afterwards.
SessionReport analyse(const recording::Session& session, const AnalysisOptions& options = {});

// ---- text --------------------------------------------------------------------------------------

struct TextOptions {
  int width = 100;      // columns; less than 60 is taken as 60
  bool colour = false;  // ANSI colours
  bool ascii = false;   // no characters beyond ASCII of our own (names stay as they are)
};
std::string render_text(const SessionReport& report, const TextOptions& options);

// Two sessions side by side: analysis/compare/comparison.hpp.

// The whole report as one JSON document (schema version in "schema"), ends with a newline.
std::string render_json(const SessionReport& report);

// The main parts as GitHub's Markdown, for an issue or a pull request.
std::string render_markdown(const SessionReport& report);

// ---- HTML --------------------------------------------------------------------------------------

struct HtmlOptions {
  bool compress = true;                  // the timelines' numbers, by gzip
  std::uint64_t max_events = 2'500'000;  // calls and device work of all timelines together
};

struct WrittenHtml {
  std::uint64_t bytes = 0;
  std::uint64_t events = 0, left_out = 0;  // of the timelines
};

// One self-contained document (docs/html-report.md) of a session and its report, with the
// predictions that are in it. Streamed.
tl::expected<WrittenHtml, recording::Error> write_html(const recording::Session& session,
                                                       const SessionReport& report,
                                                       const HtmlOptions& options, int descriptor);

// ---- traces ------------------------------------------------------------------------------------

struct ExportOptions {
  std::string directory;                     // must exist; empty: the session's directory
  bool compress = true;                      // .json.gz, else .json
  std::uint64_t max_bytes = 400u << 20;      // of uncompressed JSON per trace; 0: no limit
  bool frames = true;                        // rows of Python functions and operators
  bool include_prelude = false;              // also where there are windows with steps
  std::optional<std::uint32_t> window;       // only the window of this index, whatever its kind …
  std::optional<std::uint32_t> last_window;  // … or those from it to this one
  SymbolOptions symbols;
};

struct WrittenTrace {
  std::string path;
  std::uint32_t pid = 0;
  int rank = -1;
  std::uint32_t window = 0;
  std::uint32_t steps = 0;
  std::uint64_t events = 0;    // rows for calls and device work
  std::uint64_t left_out = 0;  // rows left out because of max_bytes
  std::uint64_t frames = 0;    // rows of Python functions and operators
};

struct ExportResult {
  std::vector<WrittenTrace> written;
  std::vector<recording::Error> problems;  // files that could not be written, and why
  std::vector<std::string> notes;          // what the traces lack, one line each
};

// One trace per window and process, and beside each recording the names of its native addresses,
// where there are any (docs/symbols.md). Existing traces are never overwritten. It is a problem if
// none of the windows that were asked for is in a recording.
ExportResult export_traces(const recording::Session& session, const ExportOptions& options);

}  // namespace gpubusy::analysis
