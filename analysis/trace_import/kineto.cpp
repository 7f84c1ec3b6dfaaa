// SPDX-License-Identifier: Apache-2.0
#include "analysis/trace_import/kineto.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "analysis/trace_import/trace_events.hpp"

namespace gpubusy::analysis {
namespace {

using recording::Activity;
using recording::ActivityKind;
using recording::Call;
using recording::Category;
using recording::CopyDirection;
using recording::MemoryKind;
using recording::Recording;

constexpr std::uint64_t kOrigin = 1'000'000'000;  // where the trace's first event is put

struct Range {
  std::uint64_t begin, end;
  std::string name;
  std::uint32_t thread;
};
struct Function {  // of Python
  std::uint64_t begin, end;
  std::string name;
};

std::uint32_t number_of(const std::string& text) {
  // "25738", and "stream 7" of old traces.
  const std::size_t digit = text.find_first_of("0123456789");
  std::uint32_t value = 0;
  if (digit != std::string::npos) {
    std::from_chars(text.data() + digit, text.data() + text.size(), value);
  }
  return value;
}

MemoryKind kind_named(std::string_view word) {
  if (word == "Pageable") return MemoryKind::kPageable;
  if (word == "Pinned") return MemoryKind::kPinned;
  if (word == "Device") return MemoryKind::kDevice;
  if (word == "Array") return MemoryKind::kArray;
  if (word == "Managed") return MemoryKind::kManaged;
  return MemoryKind::kUnknown;
}

// "Memcpy HtoD (Pageable -> Device)"
void read_copy_name(std::string_view name, recording::CopyActivityPayload& copy) {
  const auto has = [&](const char* word) { return name.find(word) != std::string_view::npos; };
  copy.direction = has("HtoD")   ? CopyDirection::kHostToDevice
                   : has("DtoH") ? CopyDirection::kDeviceToHost
                   : has("DtoD") ? CopyDirection::kDeviceToDevice
                   : has("PtoP") ? CopyDirection::kPeerToPeer
                   : has("HtoH") ? CopyDirection::kHostToHost
                                 : CopyDirection::kUnknown;
  const std::size_t open = name.find('('), arrow = name.find(" -> "), close = name.rfind(')');
  if (open == std::string_view::npos || arrow == std::string_view::npos ||
      close == std::string_view::npos || !(open < arrow && arrow < close)) {
    return;
  }
  copy.source_kind = kind_named(name.substr(open + 1, arrow - open - 1));
  copy.destination_kind = kind_named(name.substr(arrow + 4, close - arrow - 4));
}

std::uint16_t narrow(std::uint32_t value) {
  return static_cast<std::uint16_t>(std::min<std::uint32_t>(value, 0xffff));
}

class Importer {
 public:
  explicit Importer(const std::string& path) {
    out_.path = path;
    out_.from_trace = true;
  }

  tl::expected<Recording, recording::Error> run() {
    const auto head = read_trace_events(out_.path, [&](TraceEvent& e) { take(e); });
    if (!head) return tl::unexpected(head.error());
    if (out_.calls.empty() && out_.activities.empty()) {
      return tl::unexpected(recording::Error{
          fmt::format("'{}': a trace without CUDA calls and device work; it was made without "
                      "ProfilerActivity.CUDA, or by something else than torch.profiler",
                      out_.path)});
    }
    out_.rank = head->rank;
    out_.world_size = head->world_size;
    out_.pid = pid_;
    for (std::size_t i = 0; i < head->device_names.size(); ++i) {
      out_.devices[static_cast<std::int32_t>(i)].name = head->device_names[i];
    }
    shift_times();
    join();
    add_steps();
    add_ranges();
    add_stacks();
    sort();
    add_notices();
    out_.command_line = {std::filesystem::path(out_.path).filename().string()};
    out_.state = recording::FileState::kFinished;
    // Where a schedule chose the steps, the program had run before, and what it launched then may
    // still run: a pause, then the trace.
    if (!steps_.empty())
      out_.recording_edges = {{kOrigin - 2, true}, {kOrigin - 1, false}, {kOrigin, true}};
    return std::move(out_);
  }

 private:
  void take(TraceEvent& e) {
    const auto begin = static_cast<std::uint64_t>(e.start_ns);
    const std::uint64_t end = begin + static_cast<std::uint64_t>(e.length_ns);
    const std::string& c = e.category;
    if (c == "cuda_runtime" || c == "cuda_driver" || c == "runtime" || c == "driver") {
      add_call(e, begin, end);
    } else if (c == "kernel" || c == "gpu_memcpy" || c == "gpu_memset" || c == "memcpy" ||
               c == "memset") {
      add_activity(e, begin, end);
    } else if (e.name.starts_with("ProfilerStep#")) {
      if (c != "gpu_user_annotation") {
        steps_.emplace_back(begin, end, number_of(e.name));
        pid_ = number_of(e.process);
        see(begin, end);
      }
    } else if (c == "python_function") {
      functions_[number_of(e.thread)].push_back({begin, end, std::move(e.name)});
    } else if (c == "user_annotation" || e.name.starts_with("enumerate(DataLoader)")) {
      // What the loader takes is a range of the program's, as it is an operator of PyTorch's.
      ranges_.push_back({begin, end, std::move(e.name), number_of(e.thread)});
      see(begin, end);
    }
  }

  void see(std::uint64_t begin, std::uint64_t end) {
    first_ = std::min(first_, begin);
    last_ = std::max(last_, end);
  }

  std::uint16_t api_of(const std::string& name, bool driver) {
    const auto [it, fresh] = apis_.try_emplace(name, static_cast<std::uint16_t>(out_.apis.size()));
    if (fresh) {
      out_.apis.push_back({name, category_of_api(name),
                           driver ? recording::Layer::kDriver : recording::Layer::kRuntime});
    }
    return it->second;
  }

  void add_call(const TraceEvent& e, std::uint64_t begin, std::uint64_t end) {
    if (apis_.size() >= 0xffff && !apis_.contains(e.name)) return;
    Call call{};
    call.start_ns = begin;
    call.end_ns = end;
    call.thread_id = number_of(e.thread);
    call.api = api_of(e.name, e.category.ends_with("driver"));
    call.category = out_.apis[call.api].category;
    call.correlation = static_cast<std::uint32_t>(out_.calls.size() + 1);
    call.device = -1;
    asynchronous_.push_back(e.name.find("Async") != std::string::npos);
    if (e.correlation) call_of_[*e.correlation].push_back(out_.calls.size());
    if (pid_ == 0) pid_ = number_of(e.process);
    out_.calls.push_back(call);
    see(begin, end);
  }

  std::uint32_t kernel_of(const std::string& name) {
    const auto [it, fresh] =
        kernels_.try_emplace(name, static_cast<std::uint32_t>(kernels_.size() + 1));
    if (fresh) out_.kernels[it->second].name = name;
    return it->second;
  }

  void add_activity(const TraceEvent& e, std::uint64_t begin, std::uint64_t end) {
    Activity a{};
    a.start_ns = begin;
    a.end_ns = end;
    a.stream = static_cast<std::uint32_t>(e.stream.value_or(number_of(e.thread)));
    a.device = static_cast<std::int16_t>(e.device.value_or(number_of(e.process)));
    a.graph_node = static_cast<std::uint64_t>(e.graph_node.value_or(0));
    if (e.category == "kernel") {
      a.kind = ActivityKind::kKernel;
      a.kernel = {};
      a.kernel.kernel = kernel_of(e.name);
      a.kernel.static_shared_bytes = e.shared_bytes;
      a.kernel.registers = narrow(e.registers);
      a.kernel.grid_x = e.grid[0];
      a.kernel.grid_y = narrow(e.grid[1]);
      a.kernel.grid_z = narrow(e.grid[2]);
      a.kernel.block_x = narrow(e.block[0]);
      a.kernel.block_y = narrow(e.block[1]);
      a.kernel.block_z = narrow(e.block[2]);
    } else if (e.category.ends_with("memcpy")) {
      a.kind = ActivityKind::kCopy;
      a.copy = {};
      a.copy.bytes = static_cast<std::uint64_t>(e.bytes.value_or(0));
      a.copy.source_device = a.copy.destination_device = -1;
      read_copy_name(e.name, a.copy);
    } else {
      a.kind = ActivityKind::kMemset;
      a.memset = {};
      a.memset.bytes = static_cast<std::uint64_t>(e.bytes.value_or(0));
    }
    correlations_.push_back(e.correlation.value_or(-1));
    out_.activities.push_back(a);
    see(begin, end);
  }

  std::uint64_t shifted(std::uint64_t time) const { return time - first_ + kOrigin; }

  void shift_times() {
    for (Call& call : out_.calls) {
      call.start_ns = shifted(call.start_ns);
      call.end_ns = shifted(call.end_ns);
    }
    for (Activity& a : out_.activities) {
      a.start_ns = shifted(a.start_ns);
      a.end_ns = shifted(a.end_ns);
    }
    out_.start_ns = kOrigin;
    out_.start_unix_ns = first_;
    out_.end_ns = shifted(last_);
  }

  // Device work to its calls. A call of the driver inside one of the runtime may have the same
  // number: the one that asks for such work counts, the outer one first.
  void join() {
    for (std::size_t i = 0; i < out_.activities.size(); ++i) {
      Activity& a = out_.activities[i];
      const auto found = call_of_.find(correlations_[i]);
      Call* call = nullptr;
      if (found != call_of_.end()) {
        for (const std::size_t c : found->second) {
          Call& candidate = out_.calls[c];
          const bool asks = candidate.category == Category::kLaunch ||
                            candidate.category == Category::kGraphLaunch ||
                            candidate.category == Category::kCopy ||
                            candidate.category == Category::kMemset;
          if (call == nullptr || (asks && candidate.start_ns < call->start_ns)) call = &candidate;
        }
      }
      if (call == nullptr) {
        ++out_.orphan_activities;
        continue;
      }
      if (call->category == Category::kOther) adopt(*call, a.kind);
      describe(*call, a);
      a.correlation = call->correlation;
      recording::DeviceTime time{};
      time.start_ns = a.start_ns;
      time.end_ns = a.end_ns;
      time.correlation = call->correlation;
      time.stream = a.stream;
      time.device = a.device;
      time.graph_node = static_cast<std::uint32_t>(a.graph_node);
      time.source = recording::TimeSource::kCupti;
      time.activity = static_cast<std::uint32_t>(i);
      call->flags |= recording::kCallTimed;
      call->stream = a.stream;
      call->device = a.device;
      out_.device_times.push_back(time);
    }
    drop_inner_calls();
  }

  // A function that the hook table does not have, and that asked for device work.
  static void adopt(Call& call, ActivityKind kind) {
    call.category = kind == ActivityKind::kKernel ? Category::kLaunch
                    : kind == ActivityKind::kCopy ? Category::kCopy
                                                  : Category::kMemset;
  }

  void describe(Call& call, const Activity& a) {
    const auto index = static_cast<std::size_t>(&call - out_.calls.data());
    if (call.category == Category::kLaunch && a.kind == ActivityKind::kKernel) {
      call.launch.kernel = a.kernel.kernel;
      call.launch.grid[0] = a.kernel.grid_x;
      call.launch.grid[1] = a.kernel.grid_y;
      call.launch.grid[2] = a.kernel.grid_z;
      call.launch.block[0] = a.kernel.block_x;
      call.launch.block[1] = a.kernel.block_y;
      call.launch.block[2] = a.kernel.block_z;
    } else if (call.category == Category::kCopy && a.kind == ActivityKind::kCopy) {
      call.copy.bytes = a.copy.bytes;
      call.copy.direction = a.copy.direction;
      call.copy.source_kind = a.copy.source_kind;
      call.copy.destination_kind = a.copy.destination_kind;
      call.copy.asynchronous = asynchronous_[index];
      call.copy.source_device = call.copy.destination_device = -1;
    } else if (call.category == Category::kMemset && a.kind == ActivityKind::kMemset) {
      call.memset.bytes = a.memset.bytes;
      call.memset.asynchronous = asynchronous_[index];
    }
  }

  // Kineto writes what the runtime asks of the driver beside it; one request is one event here. And
  // calls that asked for work that the trace does not hold are no requests for work: whether they
  // were captured into a graph, or the trace ended before, it does not tell.
  void drop_inner_calls() {
    std::vector<std::size_t> order(out_.calls.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      const Call &x = out_.calls[a], &y = out_.calls[b];
      return std::pair(x.start_ns, y.end_ns) < std::pair(y.start_ns, x.end_ns);
    });
    std::map<std::uint32_t, std::uint64_t> until;  // end of the outermost call, by thread
    std::vector<Call> kept;
    kept.reserve(order.size());
    for (const std::size_t i : order) {
      Call& call = out_.calls[i];
      const bool timed = (call.flags & recording::kCallTimed) != 0;
      std::uint64_t& end = until[call.thread_id];
      if (!timed && call.end_ns <= end) continue;
      end = std::max(end, call.end_ns);
      const bool asks = call.category == Category::kLaunch ||
                        call.category == Category::kGraphLaunch ||
                        call.category == Category::kCopy || call.category == Category::kMemset;
      if (asks && !timed) {
        ++without_work_;
        call.flags |= recording::kCallCaptured;
      }
      kept.push_back(call);
    }
    out_.calls = std::move(kept);
  }

  void add_steps() {
    std::sort(steps_.begin(), steps_.end());
    if (steps_.empty()) {
      recording::Window all{};
      all.kind = recording::WindowKind::kWholeRun;
      all.begin_ns = kOrigin;
      all.end_ns = out_.end_ns;
      all.complete = true;
      out_.windows.push_back(all);
      return;
    }
    recording::Window window{};
    window.kind = recording::WindowKind::kScheduled;
    window.first_step = std::get<2>(steps_.front());
    window.begin_ns = shifted(std::get<0>(steps_.front()));
    window.complete = true;
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      const auto& [begin, end, number] = steps_[i];
      // A step lasts until the next begins.
      const std::uint64_t edge = i + 1 < steps_.size() ? std::get<0>(steps_[i + 1]) : end;
      out_.steps.push_back({shifted(edge), number, 0, recording::StepSource::kNone});
      window.end_ns = shifted(edge);
    }
    window.planned_steps = window.completed_steps = static_cast<std::uint32_t>(steps_.size());
    out_.steps_seen = steps_.size();
    out_.windows.push_back(window);
  }

  void add_ranges() {
    std::map<std::string, std::uint32_t> texts;
    for (const Range& r : ranges_) {
      const auto [it, fresh] =
          texts.try_emplace(r.name, static_cast<std::uint32_t>(texts.size() + 1));
      if (fresh) out_.range_texts[it->second] = r.name;
      recording::Range range{};
      range.start_ns = shifted(r.begin);
      range.end_ns = shifted(r.end);
      range.text = it->second;
      range.thread_id = r.thread;
      range.kind = recording::RangeKind::kPushPop;
      out_.ranges.push_back(range);
    }
    std::stable_sort(out_.ranges.begin(), out_.ranges.end(), [](const auto& a, const auto& b) {
      return std::pair(a.start_ns, b.end_ns) < std::pair(b.start_ns, a.end_ns);
    });
  }

  // The Python functions that were running at each call, if the trace has them (with_stack=True).
  void add_stacks() {
    std::map<std::string, std::uint32_t> codes;
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> nodes;
    const auto node_of = [&](std::uint32_t parent, const std::string& name) -> std::uint32_t {
      // "train.py(57): main"; what C implements has no file.
      const std::size_t open = name.find('('), close = name.find("): ");
      if (open == std::string::npos || close == std::string::npos || close < open || open == 0) {
        return parent;
      }
      const auto [code, fresh] =
          codes.try_emplace(name, static_cast<std::uint32_t>(codes.size() + 1));
      if (fresh) {
        recording::Code& c = out_.codes[code->second];
        c.file = file_of(name.substr(0, open));
        c.name = name.substr(close + 3);
        std::from_chars(name.data() + open + 1, name.data() + close, c.first_line);
        c.python_minor = 11;
      }
      const auto [node, is_new] =
          nodes.try_emplace({parent, code->second}, static_cast<std::uint32_t>(nodes.size() + 1));
      if (is_new) {
        out_.stack_nodes[node->second] = {parent, recording::FrameKind::kPython, 0,
                                          std::uint64_t{code->second} << 32};
      }
      return node->second;
    };
    std::map<std::uint32_t, std::vector<Call*>> calls;
    for (Call& call : out_.calls) calls[call.thread_id].push_back(&call);
    for (auto& [thread, functions] : functions_) {
      const auto found = calls.find(thread);
      if (found == calls.end()) continue;
      has_stacks_ = true;
      std::stable_sort(functions.begin(), functions.end(),
                       [](const Function& a, const Function& b) {
                         return std::pair(a.begin, b.end) < std::pair(b.begin, a.end);
                       });
      struct Open {
        std::uint64_t end;
        std::uint32_t node;
      };
      std::vector<Open> open;
      std::size_t next = 0;
      for (Call* call : found->second) {
        const auto close_until = [&](std::uint64_t time) {
          while (!open.empty() && open.back().end <= time) open.pop_back();
        };
        for (; next < functions.size() && shifted_or_zero(functions[next].begin) <= call->start_ns;
             ++next) {
          close_until(shifted_or_zero(functions[next].begin));
          const std::uint32_t parent = open.empty() ? 0 : open.back().node;
          open.push_back(
              {shifted_or_zero(functions[next].end), node_of(parent, functions[next].name)});
        }
        close_until(call->start_ns);
        call->python_stack = open.empty() ? 0 : open.back().node;
      }
    }
  }

  std::uint64_t shifted_or_zero(std::uint64_t time) const {
    return time < first_ ? 0 : shifted(time);
  }

  // torch.profiler takes the part of a path off that is on sys.path, so that a library's file and
  // the program's look alike; those of libraries get a folder that tells.
  static std::string file_of(std::string file) {
    static constexpr std::string_view kLibraries[] = {
        "torch/",       "torchvision/", "torchaudio/",      "transformers/",
        "accelerate/",  "deepspeed/",   "lightning/",       "pytorch_lightning/",
        "numpy/",       "PIL/",         "multiprocessing/", "concurrent/",
        "asyncio/",     "threading.py", "runpy.py",         "contextlib.py",
        "functools.py", "queue.py",     "importlib/",       "tqdm/",
        "ipykernel/",   "IPython/",     "tornado/"};
    for (const std::string_view library : kLibraries) {
      if (file.starts_with(library)) return "/site-packages/" + file;
    }
    return file;
  }

  void sort() {
    std::stable_sort(out_.calls.begin(), out_.calls.end(),
                     [](const Call& a, const Call& b) { return a.start_ns < b.start_ns; });
    std::stable_sort(out_.device_times.begin(), out_.device_times.end(),
                     [](const auto& a, const auto& b) { return a.start_ns < b.start_ns; });
  }

  void add_notices() {
    const auto tell = [&](std::string text) {
      out_.notices.push_back({out_.start_ns, recording::NoticeKind::kInfo, std::move(text)});
    };
    tell(
        "From a trace, not from a recording: it does not tell which events calls are about, what "
        "failed, or what was dropped.");
    if (has_stacks_) {
      tell("Lines are those where functions begin: the trace has no others.");
    } else {
      tell("The trace has no Python stacks (with_stack=True): no lines are known.");
    }
    if (without_work_ > 0) {
      tell(fmt::format(
          "{} calls that ask for device work have none in the trace; they are left out.",
          without_work_));
    }
    if (out_.orphan_activities > 0) {
      tell(fmt::format("{} pieces of device work have no call in the trace; they are left out.",
                       out_.orphan_activities));
    }
  }

  Recording out_;
  std::uint64_t first_ = ~std::uint64_t{0}, last_ = 0;
  std::uint32_t pid_ = 0;
  std::vector<std::tuple<std::uint64_t, std::uint64_t, std::uint32_t>> steps_;
  std::vector<Range> ranges_;
  std::map<std::uint32_t, std::vector<Function>> functions_;  // by thread
  std::unordered_map<std::string, std::uint16_t> apis_;
  std::unordered_map<std::string, std::uint32_t> kernels_;
  std::unordered_map<std::int64_t, std::vector<std::size_t>>
      call_of_;                             // by the trace's correlation
  std::vector<std::int64_t> correlations_;  // by activity
  std::vector<bool> asynchronous_;          // by call
  std::uint64_t without_work_ = 0;
  bool has_stacks_ = false;
};

}  // namespace

bool is_trace_name(const std::string& path) {
  return path.ends_with(".json") || path.ends_with(".json.gz");
}

tl::expected<Recording, recording::Error> import_trace(const std::string& path) {
  return Importer(path).run();
}

}  // namespace gpubusy::analysis
