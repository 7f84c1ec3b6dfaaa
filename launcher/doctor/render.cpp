// SPDX-License-Identifier: Apache-2.0
#include "launcher/doctor/render.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "analysis/json_text.hpp"
#include "analysis/names.hpp"
#include "recording/utf8.hpp"

namespace gpubusy::launcher::doctor {
namespace {

constexpr int kSchema = 1;
constexpr std::size_t kTitleWidth = 20;

struct Look {
  const char *sign, *ascii, *colour;
};
Look look_of(Status status) {
  switch (status) {
    case Status::kOk: return {"✓", "ok", "32"};
    case Status::kWarning: return {"!", "!!", "33"};
    case Status::kFailure: return {"✗", "XX", "1;31"};
    case Status::kUnknown: break;
  }
  return {"?", "??", "2"};
}

// Values come from files and variables: no control characters reach the terminal.
std::string printable(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return text;
}

void add_wrapped(std::string& out, std::size_t indent, const std::string& text, std::size_t width) {
  std::size_t column = indent;
  bool first = true;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    std::string word = text.substr(at, end - at);
    at = end + 1;
    std::size_t length = analysis::length_of(word);
    if (const std::size_t room = width - indent; length > room) {  // a path
      const std::string head = analysis::first_characters(word, room);
      at = end - (word.size() - head.size());
      word = head;
      length = room;
    }
    if (!first && column + 1 + length > width) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
      first = true;
    }
    if (!first) {
      out += ' ';
      ++column;
    }
    out += word;
    column += length;
    first = false;
  }
  out += '\n';
}

std::string count(std::size_t n, const char* one, const char* many) {
  return fmt::format("{} {}", n, n == 1 ? one : many);
}

}  // namespace

std::string render_text(const std::vector<Result>& results, const analysis::TextOptions& options) {
  const std::size_t width = static_cast<std::size_t>(std::max(options.width, 60));
  const auto styled = [&](const char* colour, const std::string& text) {
    return options.colour ? fmt::format("\x1b[{}m{}\x1b[0m", colour, text) : text;
  };
  std::string out;
  std::size_t failures = 0, warnings = 0, unknown = 0;
  for (const Result& r : results) {
    failures += r.outcome.status == Status::kFailure;
    warnings += r.outcome.status == Status::kWarning;
    unknown += r.outcome.status == Status::kUnknown;
    const Look look = look_of(r.outcome.status);
    const std::string sign = options.ascii ? look.ascii : look.sign;
    const std::size_t indent = 2 + analysis::length_of(sign) + 1 + kTitleWidth + 1;
    out += fmt::format("  {} {:<{}} ", styled(look.colour, sign), r.title, kTitleWidth);
    add_wrapped(out, indent, printable(r.outcome.found), width);
    const auto more = [&](const char* label, const std::string& text) {
      if (text.empty()) return;
      out += std::string(indent, ' ') + label;
      add_wrapped(out, indent + 6, printable(text), width);
    };
    more("why   ", r.outcome.why);
    more("cure  ", r.outcome.cure);
  }
  const std::string rest =
      fmt::format("{}, {}, {} not known", count(failures, "failure", "failures"),
                  count(warnings, "warning", "warnings"), unknown);
  out += '\n';
  const std::string verdict =
      failures == 0 ? "A recording will work here" : "A recording will not work here";
  out += styled(failures == 0 ? "1;32" : "1;31", verdict);
  // Beside it, or below.
  out += verdict.size() + rest.size() + 4 <= width ? " " : "\n";
  out += "(" + rest + ").\n";
  return out;
}

std::string render_json(const std::vector<Result>& results, const std::string& launcher_version) {
  const auto quoted = [](const std::string& text) {
    return analysis::json_string(recording::repair_utf8(text));
  };
  std::string out = fmt::format(
      "{{\n  \"schema\": {},\n  \"version\": {},\n  \"will_record\": {},\n"
      "  \"checks\": [",
      kSchema, quoted(launcher_version), will_record(results));
  const char* separator = "\n";
  for (const Result& r : results) {
    out += fmt::format(
        "{}    {{\"id\": {}, \"title\": {}, \"status\": {}, \"found\": {},\n"
        "     \"why\": {}, \"cure\": {}}}",
        separator, quoted(r.id), quoted(r.title), quoted(status_name(r.outcome.status)),
        quoted(r.outcome.found), quoted(r.outcome.why), quoted(r.outcome.cure));
    separator = ",\n";
  }
  return out + "\n  ]\n}\n";
}

}  // namespace gpubusy::launcher::doctor
