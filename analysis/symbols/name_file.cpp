// SPDX-License-Identifier: Apache-2.0
#include "analysis/symbols/name_file.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "analysis/names.hpp"
#include "analysis/symbols/elf_object.hpp"
#include "analysis/trace_file.hpp"
#include "recording/file_source.hpp"
#include "recording/utf8.hpp"

namespace gpubusy::analysis {
namespace {

constexpr std::string_view kFirstLine = "gpubusy symbols 1";
constexpr std::string_view kNoBuildId = "-";
constexpr std::uint64_t kMaxBytes = std::uint64_t{256} << 20;
constexpr std::size_t kMaxFrames = 256;  // of one address
constexpr std::size_t kFields = 6;

// Fields end at tabs, lines at line feeds.
void append_field(std::string& out, std::string_view text) {
  for (const char c : text) {
    switch (c) {
      case '\\': out += "\\\\"; break;
      case '\t': out += "\\t"; break;
      case '\n': out += "\\n"; break;
      default: out += c;
    }
  }
}

std::string field_of(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      out += text[i];
      continue;
    }
    const char c = text[++i];
    out += c == 't' ? '\t' : c == 'n' ? '\n' : c;
  }
  return recording::repair_utf8(out);
}

template <class T>
std::optional<T> number_of(std::string_view text, int base) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

// The part up to `end`, which is taken off the text; all of it where there is none.
std::string_view take(std::string_view& text, char end) {
  const std::size_t at = text.find(end);
  const std::string_view part = text.substr(0, at);
  text.remove_prefix(at == text.npos ? text.size() : at + 1);
  return part;
}

std::string function_of(const std::string& linkage) {
  return demangle(std::string(whole_function(linkage)));
}

struct Line {
  std::uint64_t offset = 0;
  NativeFrame frame;
};

std::optional<Line> line_of(std::string_view text) {
  std::array<std::string_view, kFields> fields;
  std::size_t count = 0;
  while (count < kFields) {
    fields[count++] = take(text, '\t');
    if (text.empty()) break;
  }
  if (!text.empty()) return {};
  const auto offset = number_of<std::uint64_t>(fields[0], 16);
  const auto line = number_of<int>(fields[2], 10);
  if (!offset || !line || *line < 0) return {};
  Line out;
  out.offset = *offset;
  NativeFrame& frame = out.frame;
  for (const char flag : fields[1]) {
    if (flag == 'i') {
      frame.inlined = true;
    } else if (flag == 'd') {
      frame.doubtful = true;
    } else if (flag != '-') {
      return {};
    }
  }
  frame.line = *line;
  frame.offset = *offset;
  frame.file = field_of(fields[3]);
  frame.linkage = field_of(fields[4]);
  frame.function = fields[5].empty() ? function_of(frame.linkage) : field_of(fields[5]);
  if (frame.function.empty() && frame.file.empty()) return {};
  return out;
}

}  // namespace

NameFile::NameFile(const recording::Recording& recording)
    : recording_(fmt::format("{} {}", recording.start_unix_ns, recording.pid)) {}

std::string NameFile::path_for(const recording::Recording& recording) {
  return recording.path + ".symbols";
}

std::string NameFile::key_of(const std::string& build_id, const std::string& path) {
  return build_id.empty() ? fmt::format("{} {}", kNoBuildId, path) : build_id;
}

bool NameFile::parse(std::string_view text) {
  if (take(text, '\n') != kFirstLine) return false;
  bool own = false;
  Module* module = nullptr;
  std::uint64_t offset = 0;
  std::vector<NativeFrame> frames;
  const auto finish = [&] {
    if (frames.empty()) return;
    // The outermost is inlined into nothing: a part is missing.
    if (module == nullptr || frames.back().inlined || frames.size() > kMaxFrames) {
      bad_lines_ += frames.size();
    } else {
      module->frames.insert_or_assign(offset, std::move(frames));
    }
    frames.clear();
  };
  while (!text.empty()) {
    const bool whole = text.find('\n') != text.npos;
    std::string_view line = take(text, '\n');
    if (!whole) {
      ++bad_lines_;
      break;
    }
    if (line.starts_with("recording ")) {
      own = line.substr(line.find(' ') + 1) == recording_;
    } else if (line.starts_with("module ")) {
      finish();
      take(line, ' ');
      const std::string build_id(take(line, ' '));
      const std::string path = field_of(line);
      const bool known = build_id != kNoBuildId;
      module = nullptr;
      if (build_id.empty() || path.empty() || (!known && !own)) continue;
      module = &modules_[key_of(known ? build_id : std::string(), path)];
      module->path = path;
    } else if (module != nullptr) {
      auto read = line_of(line);
      if (!read) {
        finish();
        ++bad_lines_;
        continue;
      }
      if (!frames.empty() && (read->offset != offset || !frames.back().inlined)) finish();
      offset = read->offset;
      if (frames.size() <= kMaxFrames) frames.push_back(std::move(read->frame));
    } else {
      ++bad_lines_;
    }
  }
  finish();
  return true;
}

bool NameFile::read(const std::string& path) {
  const recording::FileSource file(path);
  if (!file.good() || file.size() > kMaxBytes) return false;
  std::string text(file.size(), '\0');
  text.resize(file.read(0, text.data(), text.size()));
  return parse(text);
}

const std::vector<NativeFrame>* NameFile::find(const recording::Module& module,
                                               std::uint64_t offset) const {
  const auto known = modules_.find(key_of(module.build_id, module.path));
  if (known == modules_.end()) return nullptr;
  const auto frames = known->second.frames.find(offset);
  return frames == known->second.frames.end() ? nullptr : &frames->second;
}

void NameFile::put(const recording::Module& module, std::uint64_t offset,
                   std::vector<NativeFrame> frames) {
  std::erase_if(frames, [](const NativeFrame& f) { return f.function.empty() && f.file.empty(); });
  if (frames.empty() || frames.back().inlined) return;
  Module& kept = modules_[key_of(module.build_id, module.path)];
  kept.path = module.path;
  kept.frames.insert_or_assign(offset, std::move(frames));
}

std::string NameFile::text() const {
  std::string out = fmt::format("{}\nrecording {}\n", kFirstLine, recording_);
  for (const auto& [key, module] : modules_) {
    out += fmt::format("module {} ", key.substr(0, key.find(' ')));
    append_field(out, module.path);
    out += '\n';
    for (const auto& [offset, frames] : module.frames) {
      for (const NativeFrame& frame : frames) {
        out += fmt::format("{:x}\t{}{}{}\t{}\t", offset, frame.inlined ? "i" : "",
                           frame.doubtful ? "d" : "", frame.inlined || frame.doubtful ? "" : "-",
                           frame.line);
        append_field(out, frame.file);
        out += '\t';
        append_field(out, frame.linkage);
        out += '\t';
        // What follows from the linkage name is not written twice.
        if (frame.linkage.empty() || frame.function != function_of(frame.linkage)) {
          append_field(out, frame.function);
        }
        out += '\n';
      }
    }
  }
  return out;
}

tl::expected<std::string, recording::Error> NameFile::write(const std::string& path) const {
  const std::size_t slash = path.rfind('/');
  TraceFile file(slash == path.npos ? "." : path.substr(0, slash + 1), false);
  file.write(text());
  return file.replace(slash == path.npos ? path : path.substr(slash + 1));
}

}  // namespace gpubusy::analysis
