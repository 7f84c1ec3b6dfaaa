// SPDX-License-Identifier: Apache-2.0
//
// The HTML report: the template, the JSON report for all numbers, and each process's timeline.
#include <cerrno>
#include <system_error>

#include <fmt/format.h>

#include "analysis/api.hpp"
#include "analysis/html/flames.hpp"
#include "analysis/html/payload.hpp"
#include "analysis/html/template.hpp"
#include "analysis/html/text_sink.hpp"
#include "analysis/json_text.hpp"
#include "analysis/report.hpp"
#include "analysis/whatif/whatif.hpp"

namespace gpubusy::analysis {
namespace {

using recording::Recording;

void write_escaped(TextSink& out, std::string_view text) {
  std::string escaped;
  escaped.reserve(text.size() + text.size() / 8);
  for (const char c : text) {
    switch (c) {
      case '<': escaped += "&lt;"; break;
      case '>': escaped += "&gt;"; break;
      case '&': escaped += "&amp;"; break;
      case '"': escaped += "&quot;"; break;
      default: escaped += c;
    }
  }
  out.write(escaped);
}

// JSON inside <script>: '<' stands in strings only, and might begin the element's end.
void write_json(TextSink& out, std::string_view json) {
  std::size_t from = 0;
  for (std::size_t at = json.find('<'); at != json.npos; at = json.find('<', from)) {
    out.write(json.substr(from, at - from));
    out.write("\\u003c");
    from = at + 1;
  }
  out.write(json.substr(from));
}

std::string csp_hash(std::string_view hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  }
  return fmt::format("'sha256-{}'", base64(bytes));
}

const Recording* recording_of(const recording::Session& session, const ProcessReport& process) {
  for (const Recording& recording : session.processes) {
    if (recording.path == process.path) return &recording;
  }
  return nullptr;
}

class HtmlWriter {
 public:
  HtmlWriter(const recording::Session& session, const SessionReport& report,
             const HtmlOptions& options, int descriptor)
      : session_(session), report_(report), options_(options), out_(descriptor) {}

  tl::expected<WrittenHtml, recording::Error> run() {
    std::string_view rest = kReportHtml;
    while (!rest.empty()) {
      const std::size_t at = rest.find("{{");
      const std::size_t end = rest.find("}}", at == rest.npos ? 0 : at);
      if (at == rest.npos || end == rest.npos) break;
      out_.write(rest.substr(0, at));
      fill(rest.substr(at + 2, end - at - 2));
      rest.remove_prefix(end + 2);
    }
    out_.write(rest);
    if (!out_.flush()) {
      return tl::unexpected(recording::Error{std::generic_category().message(out_.error())});
    }
    written_.bytes = out_.bytes();
    return written_;
  }

 private:
  void fill(std::string_view what) {
    if (what == "policy") {
      out_.write(fmt::format(
          "default-src 'none'; script-src {}; style-src {}; base-uri 'none'; form-action 'none'",
          csp_hash(kReportJsSha256), csp_hash(kReportCssSha256)));
    } else if (what == "title") {
      write_escaped(out_,
                    report_.processes.empty() ? report_.path : report_.processes.front().command);
    } else if (what == "style") {
      out_.write(kReportCss);
    } else if (what == "script") {
      out_.write(kReportJs);
    } else if (what == "text") {
      TextOptions options;
      options.width = 100;
      write_escaped(out_, render_text(report_, options));
    } else if (what == "report") {
      write_json(out_, render_json(report_));
    } else if (what == "whatif") {
      std::vector<whatif::Predictions> predictions;
      for (const ProcessReport& process : report_.processes) {
        if (process.predictions) predictions.push_back(*process.predictions);
      }
      write_json(out_, whatif::render_json(predictions));
    } else if (what == "timelines") {
      timelines();
    }
  }

  void timelines() {
    const std::vector<ProcessReport>& processes =
        report_.processes.empty() ? report_.silent : report_.processes;
    for (std::size_t i = 0; i < processes.size() && out_.error() == 0; ++i) {
      const Recording* recording = recording_of(session_, processes[i]);
      if (recording == nullptr) continue;
      const JudgedProcess process(*recording);
      const TimelinePayload payload(process, options_.max_events / processes.size());
      written_.events += payload.events();
      written_.left_out += payload.left_out();
      out_.write(fmt::format("<script type=\"application/json\" id=\"flames-{}\">", i));
      write_json(out_, flames_json(process));
      out_.write(
          fmt::format("</script>\n<script type=\"application/json\" id=\"timeline-{}\">", i));
      write_json(out_, payload.head());
      out_.write(fmt::format("</script>\n<script type=\"{}\" id=\"columns-{}\">",
                             options_.compress ? "application/gzip" : "application/octet-stream",
                             i));
      Base64Stream columns(out_, options_.compress);
      payload.write_columns(columns);
      columns.finish();
      out_.write("</script>\n");
    }
  }

  const recording::Session& session_;
  const SessionReport& report_;
  const HtmlOptions& options_;
  TextSink out_;
  WrittenHtml written_;
};

}  // namespace

tl::expected<WrittenHtml, recording::Error> write_html(const recording::Session& session,
                                                       const SessionReport& report,
                                                       const HtmlOptions& options, int descriptor) {
  return HtmlWriter(session, report, options, descriptor).run();
}

}  // namespace gpubusy::analysis
