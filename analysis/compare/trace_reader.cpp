// SPDX-License-Identifier: Apache-2.0
//
// Chrome traces, event by event: a trace may be far larger than memory should be.
#include <sys/stat.h>
#include <zlib.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <string_view>
#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "analysis/compare/measured.hpp"
#include "analysis/intervals.hpp"

namespace gpubusy::analysis {
namespace {

// Bytes of a file, plain or gzip, one at a time as the parser takes them.
class GzipBytes {
 public:
  explicit GzipBytes(const std::string& path) : file_(gzopen(path.c_str(), "rbe")) {
    if (file_ != nullptr) gzbuffer(file_, 1u << 17);
  }
  ~GzipBytes() {
    if (file_ != nullptr) gzclose(file_);
  }
  GzipBytes(const GzipBytes&) = delete;
  GzipBytes& operator=(const GzipBytes&) = delete;
  bool is_open() const { return file_ != nullptr; }

  // -1 at the end, or where the file is damaged.
  int next() {
    if (at_ == size_) {
      const int n = gzread(file_, buffer_, sizeof buffer_);
      if (n <= 0) return -1;
      size_ = static_cast<std::size_t>(n);
      at_ = 0;
    }
    return static_cast<unsigned char>(buffer_[at_++]);
  }

 private:
  gzFile file_;
  char buffer_[1u << 16] = {};
  std::size_t at_ = 0, size_ = 0;
};

// An input iterator over them; the default one is the end.
class ByteIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = char;

  ByteIterator() = default;
  explicit ByteIterator(GzipBytes& bytes) : bytes_(&bytes), byte_(bytes.next()) {}
  char operator*() const { return static_cast<char>(byte_); }
  ByteIterator& operator++() {
    byte_ = bytes_->next();
    return *this;
  }
  ByteIterator operator++(int) {
    ByteIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const ByteIterator& other) const { return byte_ == other.byte_; }

 private:
  GzipBytes* bytes_ = nullptr;
  int byte_ = -1;
};

constexpr std::int64_t kMostUs = 4'000'000'000'000'000;  // in 2096

// "1623142623636318.123" in us to ns, exactly; a double has too few digits for it. Beyond
// kMostUs: 0.
std::int64_t ns_of(const std::string& text) {
  const std::size_t dot = text.find_first_of(".eE");
  std::int64_t whole = 0;
  std::from_chars(text.data(), text.data() + std::min(dot, text.size()), whole);
  if (whole > kMostUs || whole < -kMostUs) return 0;
  if (dot == text.npos) return whole * 1000;
  if (text[dot] != '.' || text.find_first_of("eE") != text.npos) {
    const double us = std::strtod(text.c_str(), nullptr);
    return std::abs(us) < kMostUs ? static_cast<std::int64_t>(us * 1000) : 0;
  }
  std::int64_t part = 0;
  int digits = 0;
  for (std::size_t i = dot + 1; i < text.size() && digits < 3; ++i, ++digits) {
    part = part * 10 + (text[i] - '0');
  }
  for (; digits < 3; ++digits) part *= 10;
  return whole * 1000 + (text[0] == '-' ? -part : part);
}

struct TraceEvent {
  std::string phase, category, name, process;
  std::int64_t start = 0, length = 0;
};

struct Trace {
  int rank = -1;
  std::uint32_t pid = 0;
  std::vector<Interval> steps;
  struct Work {
    Interval when;
    bool kernel = false;
  };
  std::map<std::string, std::vector<Work>> devices;  // by the rows' process
  bool has_events = false;
};

// Collects from the events of "traceEvents" and from "distributedInfo".
class Collector : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Collector(Trace& trace) : trace_(trace) {}
  const std::string& error() const { return error_; }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t value) override {
    return take_number(std::to_string(value));
  }
  bool number_unsigned(number_unsigned_t value) override {
    return take_number(std::to_string(value));
  }
  bool number_float(number_float_t, const string_t& text) override { return take_number(text); }
  bool string(string_t& text) override {
    if (!in_event()) return true;
    if (key_ == "ph") event_.phase = text;
    if (key_ == "cat") event_.category = text;
    if (key_ == "name") event_.name = text.substr(0, 64);
    if (key_ == "pid") event_.process = text;
    if (key_ == "ts" || key_ == "dur") return take_number(text);
    return true;
  }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override {
    ++depth_;
    if (depth_ == kEvent && list_ == "traceEvents") event_ = {};
    if (depth_ == kTop + 1) list_ = key_;
    return true;
  }
  bool end_object() override {
    if (in_event()) add();
    --depth_;
    return true;
  }
  bool start_array(std::size_t) override {
    ++depth_;
    // A trace may be the list of events alone.
    if (depth_ == kTop) {
      list_ = "traceEvents";
      ++depth_;
    } else if (depth_ == kTop + 1) {
      list_ = key_;
    }
    if (list_ == "traceEvents") trace_.has_events = true;
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool key(string_t& text) override {
    key_ = text;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    error_ = fmt::format("no JSON at byte {}", position);
    return false;
  }

 private:
  static constexpr int kTop = 1, kEvent = 3;  // {"traceEvents": [{

  bool in_event() const { return depth_ == kEvent && list_ == "traceEvents"; }

  bool take_number(const std::string& text) {
    if (in_event()) {
      if (key_ == "ts") event_.start = ns_of(text);
      if (key_ == "dur") event_.length = ns_of(text);
      if (key_ == "pid") event_.process = text;
    } else if (depth_ == kTop + 1 && list_ == "distributedInfo" && key_ == "rank") {
      trace_.rank = std::atoi(text.c_str());
    }
    return true;
  }

  void add() {
    if (event_.phase != "X" || event_.start < 0 || event_.length < 0) return;
    for (char& c : event_.category) {
      c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
    const std::string& category = event_.category;
    const Interval when{static_cast<std::uint64_t>(event_.start),
                        static_cast<std::uint64_t>(event_.start + event_.length)};
    // Kineto's names, and those before 2022 (Kernel, Memcpy, Memset; steps are Operator).
    const bool kernel = category == "kernel";
    if (kernel || category == "gpu_memcpy" || category == "gpu_memset" || category == "memcpy" ||
        category == "memset") {
      trace_.devices[event_.process].push_back({when, kernel});
    } else if (event_.name.starts_with("ProfilerStep#") && category != "gpu_user_annotation") {
      trace_.steps.push_back(when);
      trace_.pid = static_cast<std::uint32_t>(std::strtoul(event_.process.c_str(), nullptr, 10));
    }
  }

  Trace& trace_;
  TraceEvent event_;
  std::string key_, list_, error_;
  int depth_ = 0;
};

MeasuredProcess measure(Trace& trace) {
  MeasuredProcess out;
  out.from_trace = true;
  out.rank = trace.rank;
  out.pid = trace.pid;
  std::sort(trace.steps.begin(), trace.steps.end(),
            [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  std::vector<Interval> busy;
  std::vector<std::uint64_t> kernels;
  std::uint64_t most = 0;
  for (auto& [device, work] : trace.devices) {
    std::sort(work.begin(), work.end(), [](const Trace::Work& a, const Trace::Work& b) {
      return a.when.begin < b.when.begin;
    });
    std::vector<Interval> covering;
    std::uint64_t length = 0;
    for (const Trace::Work& w : work) append_union(covering, w.when);
    for (const Interval& i : covering) length += i.length();
    if (length < most) continue;
    most = length;
    busy = std::move(covering);
    kernels.clear();
    for (const Trace::Work& w : work) {
      if (w.kernel) kernels.push_back(w.when.begin);
    }
  }
  out.has_times = !busy.empty();
  if (!busy.empty()) {
    const std::uint64_t whole = busy.back().end - busy.front().begin;
    if (whole > 0) out.whole_busy_share = static_cast<double>(most) / static_cast<double>(whole);
  }
  for (const Interval& s : trace.steps) {
    MeasuredStep step;
    step.wall = static_cast<double>(s.length()) / 1e6;
    step.busy = static_cast<double>(covered(busy, s.begin, s.end)) / 1e6;
    step.kernels = static_cast<double>(std::lower_bound(kernels.begin(), kernels.end(), s.end) -
                                       std::lower_bound(kernels.begin(), kernels.end(), s.begin));
    out.steps.push_back(step);
  }
  return out;
}

bool is_trace_name(std::string_view name) {
  return name.ends_with(".json") || name.ends_with(".json.gz");
}

tl::expected<MeasuredProcess, recording::Error> load_trace(const std::string& path) {
  GzipBytes bytes(path);
  if (!bytes.is_open()) {
    return tl::unexpected(recording::Error{
        fmt::format("cannot read '{}': {}", path, std::generic_category().message(errno))});
  }
  Trace trace;
  Collector collector(trace);
  const bool whole = nlohmann::json::sax_parse(ByteIterator(bytes), ByteIterator(), &collector);
  if (!whole || !trace.has_events) {
    return tl::unexpected(recording::Error{
        fmt::format("'{}' is not a Chrome trace: {}", path,
                    whole ? std::string("it has no traceEvents") : collector.error())});
  }
  MeasuredProcess process = measure(trace);
  process.command = std::filesystem::path(path).filename().string();
  return process;
}

}  // namespace

bool is_trace_path(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return is_trace_name(path);
  bool traces = false;
  for (std::filesystem::directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.ends_with(".gpubusy")) return false;
    traces = traces || is_trace_name(name);
  }
  return traces;
}

tl::expected<MeasuredRun, recording::Error> load_traces(const std::string& path) {
  MeasuredRun run;
  run.path = path;
  std::vector<std::string> files;
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    for (std::filesystem::directory_iterator entry(path, error), end; !error && entry != end;
         entry.increment(error)) {
      if (is_trace_name(entry->path().filename().string())) {
        files.push_back(entry->path().string());
      }
    }
    std::sort(files.begin(), files.end());
  } else {
    files.push_back(path);
  }
  for (const std::string& file : files) {
    auto process = load_trace(file);
    if (!process) return tl::unexpected(std::move(process).error());
    run.processes.push_back(std::move(*process));
  }
  std::stable_sort(run.processes.begin(), run.processes.end(),
                   [](const MeasuredProcess& a, const MeasuredProcess& b) {
                     return static_cast<unsigned>(a.rank) < static_cast<unsigned>(b.rank);
                   });
  return run;
}

}  // namespace gpubusy::analysis
