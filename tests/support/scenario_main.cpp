// SPDX-License-Identifier: Apache-2.0
//
// gpubusy_scenario SCENARIO DIRECTORY: writes the scenario's recording and its traces; prints the
// paths of the traces. gpubusy_scenario SCENARIO DIRECTORY report|json|recording: prints the
// report, or writes the recording only; … html MAX: prints the HTML page with at most MAX events.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "analysis/api.hpp"
#include "analysis/report.hpp"
#include "tests/support/scenarios.hpp"

namespace {

using gpubusy::testing::RecordingBuilder;

std::vector<RecordingBuilder> build(const std::string& scenario) {
  namespace t = gpubusy::testing;
  if (scenario == "starved") return {t::starved_loop()};
  if (scenario == "pinned") return {t::starved_loop({.pinned = true})};
  if (scenario == "launches") return {t::launch_bound_loop(10, 1200, 45, 6)};
  if (scenario == "everything") return {t::everything()};
  if (scenario == "ranks") {
    std::vector<RecordingBuilder> out = {t::starved_loop({.pid = 4242}),
                                         t::starved_loop({.pid = 4243})};
    out[0].rank(0, 2, 0);
    out[1].rank(1, 2, 1);
    return out;
  }
  if (scenario == "ranges") return {t::ranges()};
  if (scenario == "golden") return {t::golden()};
  if (scenario == "million") return {t::many_calls(1'000'000)};
  if (scenario == "ten_million") return {t::many_calls(5'000'000, true)};  // calls and device times
  if (scenario == "uneven") return {t::uneven_calls(500'000)};
  if (scenario == "windows") return {t::two_windows()};
  if (scenario == "markup") return {t::markup()};
  return {};
}

}  // namespace

int main(int count, char** arguments) {
  namespace analysis = gpubusy::analysis;
  const std::vector<RecordingBuilder> recordings =
      count >= 3 ? build(arguments[1]) : std::vector<RecordingBuilder>{};
  if (recordings.empty()) {
    std::fputs(
        "usage: gpubusy_scenario "
        "starved|pinned|launches|everything|ranges|ranks|golden|million|ten_million|uneven|"
        "markup|windows "
        "DIRECTORY"
        " [report|json|recording|html [MAX]]\n",
        stderr);
    return 2;
  }
  const std::string directory = arguments[2];
  for (std::size_t i = 0; i < recordings.size(); ++i) {
    recordings[i].write(directory + "/" + arguments[1] + std::to_string(i) + ".gpubusy");
  }
  const std::string what = count > 3 ? arguments[3] : "traces";
  if (what == "recording") return 0;
  const auto session = analysis::load_session(directory);
  if (!session) {
    std::fprintf(stderr, "%s\n", session.error().message.c_str());
    return 1;
  }
  if (what == "report") {
    std::fputs(analysis::render_text(analysis::analyse(*session), {}).c_str(), stdout);
    return 0;
  }
  if (what == "json") {
    std::fputs(analysis::render_json(analysis::analyse(*session)).c_str(), stdout);
    return 0;
  }
  if (what == "html") {
    analysis::HtmlOptions options;
    if (count > 4) options.max_events = std::strtoull(arguments[4], nullptr, 10);
    const auto report = analysis::analyse(*session, {.predictions = true});
    const auto written = analysis::write_html(*session, report, options, STDOUT_FILENO);
    return written ? 0 : 1;
  }
  const analysis::ExportResult result = analysis::export_traces(*session, {});
  for (const auto& written : result.written) std::printf("%s\n", written.path.c_str());
  for (const auto& problem : result.problems) {
    std::fprintf(stderr, "%s\n", problem.message.c_str());
  }
  return result.problems.empty() ? 0 : 1;
}
