// SPDX-License-Identifier: Apache-2.0
#include "analysis/trace_import/trace_events.hpp"

#include <zlib.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

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

// Names longer than this are templates that nobody reads to the end.
constexpr std::size_t kLongestName = 4096;

class Collector : public nlohmann::json_sax<nlohmann::json> {
 public:
  Collector(TraceHead& head, const std::function<void(TraceEvent&)>& take)
      : head_(head), take_(take) {}
  const std::string& error() const { return error_; }
  bool has_events() const { return has_events_; }

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
    if (in_event()) {
      if (key_ == "ph") event_.phase = text;
      if (key_ == "cat") event_.category = text;
      if (key_ == "name") event_.name = text.substr(0, kLongestName);
      if (key_ == "pid") event_.process = text;
      if (key_ == "tid") event_.thread = text;
      if (key_ == "ts" || key_ == "dur") return take_number(text);
    } else if (in_device() && key_ == "name") {
      device_name_ = text;
    }
    return true;
  }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override {
    ++depth_;
    if (depth_ == kTop + 1) list_ = key_;
    if (depth_ == kEvent && list_ == kEvents) event_ = {};
    if (depth_ == kEvent + 1) inner_ = key_;
    return true;
  }
  bool end_object() override {
    if (in_event()) add();
    if (in_device() && device_id_ >= 0 && device_id_ < kMostDevices) {
      if (head_.device_names.size() <= static_cast<std::size_t>(device_id_)) {
        head_.device_names.resize(static_cast<std::size_t>(device_id_) + 1);
      }
      head_.device_names[static_cast<std::size_t>(device_id_)] = device_name_;
    }
    --depth_;
    return true;
  }
  bool start_array(std::size_t) override {
    ++depth_;
    // A trace may be the list of events alone.
    if (depth_ == kTop) {
      list_ = kEvents;
      ++depth_;
    } else if (depth_ == kTop + 1) {
      list_ = key_;
    }
    if (list_ == kEvents) has_events_ = true;
    if (depth_ == kEvent + 2) at_ = 0;
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
  static constexpr const char* kEvents = "traceEvents";
  static constexpr std::int64_t kMostDevices = 1024;

  bool in_event() const { return depth_ == kEvent && list_ == kEvents; }
  bool in_args() const { return depth_ == kEvent + 1 && list_ == kEvents && inner_ == "args"; }
  bool in_list_of_args() const {
    return depth_ == kEvent + 2 && list_ == kEvents && inner_ == "args";
  }
  bool in_device() const { return depth_ == kEvent && list_ == "deviceProperties"; }

  static std::int64_t whole(const std::string& text) {
    std::int64_t value = 0;
    std::from_chars(text.data(), text.data() + text.size(), value);
    return value;
  }

  bool take_number(const std::string& text) {
    if (in_event()) {
      if (key_ == "ts") event_.start_ns = ns_of(text);
      if (key_ == "dur") event_.length_ns = ns_of(text);
      if (key_ == "pid") event_.process = text;
      if (key_ == "tid") event_.thread = text;
    } else if (in_args()) {
      const std::int64_t value = whole(text);
      if (key_ == "correlation") event_.correlation = value;
      if (key_ == "stream") event_.stream = value;
      if (key_ == "device") event_.device = value;
      if (key_ == "context") event_.context = value;
      if (key_ == "bytes") event_.bytes = value;
      if (key_ == "graph node id") event_.graph_node = value;
      if (key_ == "registers per thread") event_.registers = static_cast<std::uint32_t>(value);
      if (key_ == "shared memory") event_.shared_bytes = static_cast<std::uint32_t>(value);
    } else if (in_list_of_args()) {
      auto* shape = key_ == "grid" ? &event_.grid : key_ == "block" ? &event_.block : nullptr;
      if (shape != nullptr && at_ < shape->size()) {
        (*shape)[at_++] = static_cast<std::uint32_t>(whole(text));
      }
    } else if (in_device() && key_ == "id") {
      device_id_ = whole(text);
    } else if (depth_ == kTop + 1 && list_ == "distributedInfo") {
      if (key_ == "rank") head_.rank = static_cast<int>(whole(text));
      if (key_ == "world_size") head_.world_size = static_cast<int>(whole(text));
    }
    return true;
  }

  void add() {
    if (event_.phase != "X" || event_.start_ns < 0 || event_.length_ns < 0) return;
    for (char& c : event_.category) {
      c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
    take_(event_);
  }

  TraceHead& head_;
  const std::function<void(TraceEvent&)>& take_;
  TraceEvent event_;
  std::string key_, list_, inner_, error_, device_name_;
  std::int64_t device_id_ = -1;
  std::size_t at_ = 0;
  int depth_ = 0;
  bool has_events_ = false;
};

}  // namespace

tl::expected<TraceHead, recording::Error> read_trace_events(
    const std::string& path, const std::function<void(TraceEvent&)>& take) {
  GzipBytes bytes(path);
  if (!bytes.is_open()) {
    return tl::unexpected(recording::Error{
        fmt::format("cannot read '{}': {}", path, std::generic_category().message(errno))});
  }
  TraceHead head;
  Collector collector(head, take);
  const bool whole = nlohmann::json::sax_parse(ByteIterator(bytes), ByteIterator(), &collector);
  if (!whole || !collector.has_events()) {
    return tl::unexpected(recording::Error{
        fmt::format("'{}' is not a Chrome trace: {}", path,
                    whole ? std::string("it has no traceEvents") : collector.error())});
  }
  return head;
}

}  // namespace gpubusy::analysis
