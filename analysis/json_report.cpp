// SPDX-License-Identifier: Apache-2.0
//
// The verdict as JSON. Schema 1: fields are only added. Times in ms, shares 0 to 1.
#include <optional>

#include <nlohmann/json.hpp>

#include "analysis/api.hpp"
#include "analysis/names.hpp"
#include "analysis/report.hpp"

namespace gpubusy::analysis {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kSchema = 1;

double ms(std::uint64_t ns) { return static_cast<double>(ns) / 1e6; }

Json json(const Spread& s) {
  return {{"min", s.minimum}, {"median", s.median}, {"max", s.maximum}};
}

Json json(const SourceLine& line) {
  if (!line.known()) return nullptr;
  return {
      {"file", line.file}, {"line", line.line}, {"function", line.function}, {"user", line.user}};
}

Json json(const Gain& g) {
  if (!g.known()) return nullptr;
  return {{"change", g.change},
          {"step_ms", g.step_ms},
          {"low_ms", g.low_ms},
          {"high_ms", g.high_ms},
          {"now_ms", g.now_ms}};
}

Json json(const Finding& f) {
  return {{"id", f.id},
          {"problem", f.problem},
          {"title", f.title},
          {"share", f.share},
          {"total_ms", ms(f.total_ns)},
          {"steps", f.steps},
          {"share_of_step", json(f.share_of_step)},
          {"ms_of_step", json(f.ms_of_step)},
          {"where", f.where},
          {"after", json(f.after)},
          {"before", json(f.before)},
          {"evidence", f.evidence},
          {"cure", f.cure},
          {"gain", json(f.gain)}};
}

Json json(const Coverage& c) {
  return {{"device_work_expected", c.expected},
          {"device_work_timed", c.timed},
          {"untimed_capture", c.untimed_capture},
          {"untimed_limit", c.untimed_limit},
          {"untimed_pending", c.untimed_pending},
          {"untimed_failed", c.untimed_failed},
          {"untimed_off", c.untimed_off},
          {"captured_calls", c.captured},
          {"orphan_times", c.orphan_times},
          {"unhooked_calls", c.unhooked},
          {"dropped_activities", c.dropped},
          {"failed_calls", c.failed_calls},
          {"early_device_work", c.early_ops},
          {"max_uncertainty_us", static_cast<double>(c.max_uncertainty_ns) / 1e3}};
}

Json json(const LayerReach& l, bool known) {
  return {{"calls", l.calls},
          {"functions_called", l.functions_called},
          {"calls_of_linked_functions", known ? Json(l.linked_calls) : Json()},
          {"functions_by_dlsym", known ? Json(l.by_dlsym) : Json()},
          {"functions_by_dlvsym", known ? Json(l.by_dlvsym) : Json()},
          {"functions_by_cuGetProcAddress", known ? Json(l.by_proc_address) : Json()}};
}

void add(Json& coverage, const Reach& r) {
  coverage["layers"] = {{"runtime", json(r.runtime(), r.known)},
                        {"driver", json(r.driver(), r.known)}};
  coverage["driver_loaded"] = r.known ? Json(r.driver_loaded) : Json();
  coverage["modules"] = r.modules;
  coverage["modules_left_out"] = r.modules_left_out;
  coverage["embedded_runtimes"] = r.embedded;
  coverage["embedded_runtimes_unseen"] = r.misses_embedded();
  coverage["modules_not_read"] = Json::array();
  for (const UnreadModule& m : r.unread) {
    coverage["modules_not_read"].push_back({{"path", m.path}, {"why", m.why}});
  }
}

Json copies(const Summary& s) {
  Json out = Json::array();
  for (const CopyRow& c : s.copies) {
    out.push_back({{"direction", direction_name(c.direction)},
                   {"host_memory", memory_kind_name(c.host_kind)},
                   {"asynchronous", c.asynchronous},
                   {"count", c.count},
                   {"bytes", c.bytes},
                   {"timed", c.timed},
                   {"device_ms", ms(c.device_ns)},
                   {"gb_per_s", c.gigabytes_per_second()},
                   {"host_ms", ms(c.host_ns)},
                   {"host_ms_without_kernel", ms(c.host_idle_ns)},
                   {"line", json(c.line)}});
  }
  return out;
}

Json kernels(const Summary& s) {
  Json out = Json::array();
  for (const KernelRow& k : s.kernels) {
    out.push_back({{"name", k.name},
                   {"count", k.count},
                   {"total_ms", ms(k.total_ns)},
                   {"share", k.share},
                   {"line", json(k.line)}});
  }
  return out;
}

Json calls(const Summary& s) {
  Json out = Json::array();
  for (const CallRow& c : s.by_call) {
    out.push_back({{"name", c.name},
                   {"count", c.count},
                   {"total_ms", ms(c.total_ns)},
                   {"longest_ms", ms(c.longest_ns)},
                   {"failed", c.failed}});
  }
  return out;
}

Json ranges(const ProcessReport& p) {
  constexpr std::size_t kMaxRows = 1000;  // each step may have a name of its own
  Json out = Json::array();
  for (std::size_t i = 0; i < p.ranges.size() && i < kMaxRows; ++i) {
    const RangeRow& r = p.ranges[i];
    out.push_back({{"domain", r.domain},
                   {"name", r.name},
                   {"count", r.count},
                   {"total_ms", ms(r.total_ns)},
                   {"longest_ms", ms(r.longest_ns)},
                   {"share", r.share},
                   {"gpu_idle_ms", p.has_device_times() ? Json(ms(r.gpu_idle_ns)) : Json()},
                   {"bytes", r.bytes}});
  }
  return out;
}

Json idle_rows(const std::vector<IdleRow>& rows) {
  constexpr std::size_t kMaxRows = 100;  // thousands of lines may each have idled once
  Json out = Json::array();
  for (std::size_t i = 0; i < rows.size() && i < kMaxRows; ++i) {
    const IdleRow& r = rows[i];
    out.push_back({{"class", idle_id(r.idle)},
                   {"total_ms", ms(r.ns)},
                   {"cause", cause_id(r.cause)},
                   {"pieces", r.pieces},
                   {"steps", r.by_step.size()},
                   {"host_outside_cuda", r.outside},
                   {"then_input_copy", r.input_copy},
                   {"call", r.call},
                   {"after", json(r.region.after)},
                   {"before", json(r.region.before)}});
  }
  return out;
}

Json gaps(const Gaps& g) {
  constexpr std::size_t kMaxRows = 100;
  Json rows = Json::array();
  for (std::size_t i = 0; i < g.rows.size() && i < kMaxRows; ++i) {
    const GapRow& r = g.rows[i];
    Json inner = Json::array();
    for (const SourceLine& line : r.inner) inner.push_back(json(line));
    rows.push_back({{"kind", gap_id(r.kind)},
                    {"class", idle_id(r.idle)},
                    {"cause", cause_id(r.cause)},
                    {"total_ms", ms(r.ns)},
                    {"looks", r.looks},
                    {"steps", r.by_step.size()},
                    {"line", json(r.line)},
                    {"inner", inner},
                    {"system_call", r.call},
                    {"native", r.native}});
  }
  Json holders = Json::array();
  for (std::size_t i = 0; i < g.gil.rows.size() && i < kMaxRows; ++i) {
    const GilHolderRow& r = g.gil.rows[i];
    holders.push_back({{"thread_id", r.thread_id},
                       {"thread", r.thread},
                       {"line", json(r.line)},
                       {"total_ms", ms(r.ns)},
                       {"looks", r.looks}});
  }
  return {
      {"total_ms", ms(g.ns)},
      {"seen_ms", ms(g.seen_ns)},
      {"looks", g.looks},
      {"rows", rows},
      {"gil", {{"looks", g.gil.looks}, {"known_looks", g.gil.known_looks}, {"holders", holders}}}};
}

Json shares(const LoadingShares& of) {
  Json out = Json::object();
  for (std::size_t i = 0; i < kLoadings; ++i) out[loading_id(static_cast<Loading>(i))] = of[i];
  return out;
}

Json workers(const Workers& w) {
  constexpr std::size_t kMaxLines = 100;
  Json lines = Json::array();
  for (std::size_t i = 0; i < w.lines.size() && i < kMaxLines; ++i) {
    const WorkerLine& l = w.lines[i];
    lines.push_back({{"line", json(l.line)},
                     {"share", l.share},
                     {"looks", l.looks},
                     {"doing", shares(l.doing)}});
  }
  return {
      {"looks", w.looks},
      {"count", w.count},
      {"started", w.started},
      {"left_out", w.left_out},
      {"bottleneck", bottleneck_id(w.looks > 0 ? bottleneck_of(w.doing) : Bottleneck::kUnknown)},
      {"doing", shares(w.doing)},
      {"run_share", w.run_share},
      {"ready_share", w.ready_share},
      {"quota_share", w.quota_share},
      {"processors_used", w.processors_used},
      {"looks_without_line", w.without_line},
      {"spawned", w.spawned},
      {"forbidden", w.forbidden},
      {"lines", lines}};
}

Json waits(const Summary& s) {
  Json out = Json::array();
  for (const WaitRow& w : s.waits) {
    out.push_back({{"call", w.call},
                   {"line", json(w.line)},
                   {"count", w.count},
                   {"host_ms", ms(w.host_ns)},
                   {"device_busy_ms", ms(w.device_busy_ns)},
                   {"idle_after_ms", ms(w.idle_after_ns)}});
  }
  return out;
}

Json json(const StepDivision& d) {
  Json parts = Json::object(), hidden = Json::object();
  for (std::size_t i = 0; i < kParts; ++i) {
    if (d.ns[i] > 0) parts[part_id(static_cast<Part>(i))] = d.ns[i];
  }
  for (std::size_t i = 0; i < kBusyParts; ++i) {
    if (d.hidden[i] > 0) hidden[part_id(static_cast<Part>(i))] = d.hidden[i];
  }
  return {{"ns", std::move(parts)}, {"hidden_ns", std::move(hidden)}};
}

// The wall time without rest. In whole ns, so that sums are exact; parts of 0 are left out.
Json division(const ProcessReport& p) {
  if (!p.division.known()) return nullptr;
  const Division& d = p.division;
  Json rows = Json::array();
  for (std::size_t i = 0; i < kParts; ++i) {
    const std::uint64_t hidden = i < kBusyParts ? d.total.hidden[i] : 0;
    if (d.total.ns[i] == 0 && hidden == 0) continue;
    const auto part = static_cast<Part>(i);
    rows.push_back({{"part", part_id(part)},
                    {"title", part_title(part)},
                    {"family", part_family(part)},
                    {"busy", is_busy(part)},
                    {"total_ns", d.total.ns[i]},
                    {"share", p.share(d.total.ns[i])},
                    {"hidden_ns", hidden},
                    {"line", json(d.lines[i])}});
  }
  Json out = {{"wall_ns", p.wall_ns}, {"parts", std::move(rows)}};
  if (p.has_steps()) {
    out["median_step"] = json(d.steps[d.median]);
    out["median_step"]["step"] = p.steps[d.median].number;
    out["median_step"]["wall_ns"] = p.steps[d.median].wall_ns();
  } else {
    out["median_step"] = nullptr;
  }
  out["steps"] = Json::array();
  for (std::size_t i = 0; i < d.steps.size(); ++i) {
    Json step = {{"step", p.steps[i].number}, {"wall_ns", p.steps[i].wall_ns()}};
    step.update(json(d.steps[i]));
    out["steps"].push_back(std::move(step));
  }
  return out;
}

// What is not known is null; a limit that is known not to be there is 0.
Json json(const recording::HostOffer& h) {
  if (!h.known) return nullptr;
  const auto count = [](std::uint64_t n) { return n == 0 ? Json() : Json(n); };
  const bool quota = (h.flags & recording::kHostTellsQuota) != 0;
  const bool limit = (h.flags & recording::kHostTellsMemoryLimit) != 0;
  const bool memory = (h.flags & recording::kHostTellsMemory) != 0;
  const double effective = h.effective_processors();
  return {{"online_processors", count(h.online_processors)},
          {"usable_processors", count(h.usable_processors)},
          {"effective_processors", effective > 0 ? Json(effective) : Json()},
          {"cpu_quota_us", quota ? Json(h.cpu_quota_us) : Json()},
          {"cpu_period_us", quota ? Json(h.cpu_period_us) : Json()},
          {"memory_bytes", memory ? Json(h.memory_bytes) : Json()},
          {"swap_bytes", memory ? Json(h.swap_bytes) : Json()},
          {"memory_limit_bytes", limit ? Json(h.memory_limit_bytes) : Json()},
          {"page_bytes", count(h.page_bytes)}};
}

Json number(const std::optional<std::uint64_t>& n) { return n ? Json(*n) : Json(); }
Json ms_or_null(const std::optional<std::uint64_t>& ns) { return ns ? Json(ms(*ns)) : Json(); }

Json json(const HostUse& u) {
  if (!u.known()) return nullptr;
  return {{"user_ms", ms_or_null(u.user_ns)},
          {"system_ms", ms_or_null(u.system_ns)},
          {"minor_faults", number(u.minor_faults)},
          {"major_faults", number(u.major_faults)},
          {"voluntary_switches", number(u.voluntary_switches)},
          {"involuntary_switches", number(u.involuntary_switches)}};
}

const char* source_id(recording::HostSource source) {
  switch (source) {
    case recording::HostSource::kGroup: return "control_group";
    case recording::HostSource::kMachine: return "machine";
    case recording::HostSource::kNoFile: return "no_file";
    case recording::HostSource::kRefused: return "refused";
    case recording::HostSource::kStrange: return "not_understood";
    case recording::HostSource::kNotNeeded: return "no_swap_space";
    case recording::HostSource::kNotTold: break;
  }
  return "not_counted";
}

// Sums over the judged steps.
Json json(const HostReport& h) {
  const HostBeside& b = h.beside;
  const auto source = [&](recording::HostTopic topic) {
    return source_id(h.sources[static_cast<std::size_t>(topic)]);
  };
  return {{"counted_steps", h.counted_steps},
          {"process", json(h.process)},
          {"step_thread", json(h.thread)},
          {"samples", h.samples},
          {"sampled_ms", ms(b.ns)},
          {"process_by_samples", json(b.process)},
          {"quota",
           {{"source", source(recording::HostTopic::kQuota)},
            {"periods", number(b.quota_periods)},
            {"throttled_periods", number(b.throttled_periods)},
            {"throttled_processor_ms", ms_or_null(b.throttled_ns)}}},
          {"memory",
           {{"source", source(recording::HostTopic::kMemory)},
            {"high_events", number(b.memory_high)},
            {"max_events", number(b.memory_max)},
            {"oom_kills", number(b.memory_oom_kills)}}},
          {"pressure",
           {{"source", source(recording::HostTopic::kPressure)},
            {"cpu_some_ms", ms_or_null(b.cpu_some_ns)},
            {"cpu_full_ms", ms_or_null(b.cpu_full_ns)},
            {"io_some_ms", ms_or_null(b.io_some_ns)},
            {"io_full_ms", ms_or_null(b.io_full_ns)},
            {"memory_some_ms", ms_or_null(b.memory_some_ns)},
            {"memory_full_ms", ms_or_null(b.memory_full_ns)}}},
          {"swap",
           {{"source", source(recording::HostTopic::kSwap)},
            {"pages_in", number(b.swap_in_pages)},
            {"pages_out", number(b.swap_out_pages)},
            {"process_swapped_bytes", number(b.swapped_bytes)}}}};
}

const char* mode_name(StepMode mode) {
  switch (mode) {
    case StepMode::kSteps: return "steps";
    case StepMode::kPasses: return "passes";
    case StepMode::kWholeSpan: break;
  }
  return "whole_span";
}

Json steps(const ProcessReport& p) {
  Json out = Json::array();
  for (std::size_t i = 0; i < p.steps.size(); ++i) {
    const StepTimes& t = p.times[i];
    Json idle = Json::object();
    for (const IdleClass c : kAllIdleClasses) idle[idle_id(c)] = ms(t.idle(c));
    const bool known = p.has_device_times();
    out.push_back({{"step", p.steps[i].number},
                   {"wall_ms", ms(t.wall_ns)},
                   {"busy_ms", known ? Json(ms(t.busy_ns)) : Json()},
                   {"kernel_busy_ms", known ? Json(ms(t.kernel_busy_ns)) : Json()},
                   {"idle_ms", known ? std::move(idle) : Json()},
                   {"device_work", t.ops},
                   {"kernels", t.kernels},
                   {"host", json(p.host_counters.steps[i].process)},
                   {"host_step_thread", json(p.host_counters.steps[i].thread)}});
  }
  return out;
}

Json json(const ProcessReport& p) {
  Json out;
  out["pid"] = p.pid;
  out["parent_pid"] = p.parent_pid;
  out["rank"] = p.rank < 0 ? Json() : Json(p.rank);
  out["world_size"] = p.world_size < 0 ? Json() : Json(p.world_size);
  out["local_rank"] = p.local_rank < 0 ? Json() : Json(p.local_rank);
  out["host"] = p.host;
  out["command"] = p.command;
  out["executable"] = p.executable;
  out["recording"] = p.path;
  out["library_version"] = p.library_version;
  out["state"] = file_state_name(p.state);
  out["warnings"] = p.warnings;
  out["notices"] = p.notices;
  out["settings"] = p.settings;
  out["calls"] = p.calls;
  out["lost_records"] = p.lost_records;
  out["torn_blocks"] = p.torn_blocks;
  out["unknown_records"] = p.unknown_records;
  out["bad_records"] = p.bad_records;
  out["bad_bytes"] = p.bad_bytes;
  out["coverage"] = json(p.coverage);
  add(out["coverage"], p.reach);
  out["coverage"]["device_times_by_source"] = Json::object();
  for (const auto& [source, count] : p.times_by_source) {
    out["coverage"]["device_times_by_source"][std::string(time_source_name(source))] = count;
  }
  out["time_source"] = time_source_name(p.time_source);
  out["clock_correction_us"] = static_cast<double>(p.clock_correction_ns) / 1e3;
  out["overhead_ms"] = {{"cupti", ms(p.cupti_ns)},
                        {"launch_queue_full", ms(p.queue_full_ns)},
                        {"code_loading", ms(p.code_loading_ns)}};
  out["mode"] = mode_name(p.mode);
  out["pass_begins"] = json(p.pass_line);
  out["step_source"] = step_source_name(p.step_source);
  out["steps_seen"] = p.steps_seen;
  out["windows"] = p.windows;
  out["cut_windows"] = p.cut_windows;
  out["warmup_left_out"] = p.warmup_left_out;
  out["outlier_steps"] = p.outlier_steps;
  out["device"] = p.device < 0 ? Json() : Json(p.device);
  out["device_name"] = p.device_name;
  out["other_devices"] = Json::array();
  for (const OtherDevice& d : p.other_devices) {
    out["other_devices"].push_back(
        {{"device", d.device}, {"name", d.name}, {"busy_share", d.busy_share}});
  }
  out["step_ms"] = json(p.step_ms);
  out["mean_step_ms"] = p.has_steps() ? Json(p.mean_step_ms()) : Json();
  out["other_steps"] = p.other_steps;
  out["other_step_ms"] = p.other_steps > 0 ? json(p.other_step_ms) : Json();
  out["host_ms"] = {{"outside", ms(p.host_time(HostState::kOutside))},
                    {"launching", ms(p.host_time(HostState::kLaunching))},
                    {"waiting", ms(p.host_time(HostState::kWaiting))},
                    {"other_calls", ms(p.host_time(HostState::kOtherCall))}};
  out["wall_ms"] = ms(p.wall_ns);
  const bool known = p.has_device_times() && p.wall_ns > 0;
  out["busy_share"] = known ? Json(p.share(p.busy_ns)) : Json();
  out["busy_share_of_step"] = known ? json(p.busy_share_of_step) : Json();
  out["busy_ms"] = known ? Json(ms(p.busy_ns)) : Json();
  out["kernel_busy_ms"] = known ? Json(ms(p.kernel_busy_ns)) : Json();
  out["earlier_busy_ms"] = known ? Json(ms(p.earlier_busy_ns)) : Json();
  Json idle = Json::object();
  for (const IdleClass c : kAllIdleClasses) idle[idle_id(c)] = ms(p.idle(c));
  out["idle_ms"] = known ? std::move(idle) : Json();
  out["division"] = division(p);
  out["findings"] = Json::array();
  for (const Finding& f : p.findings) out["findings"].push_back(json(f));
  const Summary& s = p.summary;
  out["copies"] = copies(s);
  out["kernels"] = kernels(s);
  out["calls_by_name"] = calls(s);
  out["ranges"] = ranges(p);
  out["idle_by_line"] = known ? idle_rows(s.idle) : Json();
  out["host_pauses_by_line"] = idle_rows(s.pauses);
  out["host_in_gaps"] = gaps(p.gaps);
  out["workers_in_gaps"] = workers(p.workers);
  out["waits"] = waits(s);
  out["allocations"] = {{"device_allocs", s.allocations.device_allocs},
                        {"device_frees", s.allocations.device_frees},
                        {"host_allocs", s.allocations.host_allocs},
                        {"host_frees", s.allocations.host_frees},
                        {"failed", s.allocations.failed},
                        {"host_ms", ms(s.allocations.host_ns)},
                        {"idle_ms", ms(s.allocations.idle_ns)},
                        {"line", json(s.allocations.line)},
                        {"pinned_host_ms", ms(s.allocations.pinned_host_ns)},
                        {"pinned_idle_ms", ms(s.allocations.pinned_idle_ns)},
                        {"pinned_line", json(s.allocations.pinned_line)}};
  out["small_copies"] = {{"count", s.small_copies.count},
                         {"bytes", s.small_copies.bytes},
                         {"host_ms_without_kernel", ms(s.small_copies.idle_ns)},
                         {"line", json(s.small_copies.line)}};
  out["device_copies"] = {{"count", s.concurrency.device_copies},
                          {"device_ms", ms(s.concurrency.device_copy_ns)},
                          {"line", json(s.concurrency.device_copy_line)}};
  out["pinned_copies"] = {{"device_ms", ms(s.concurrency.pinned_copy_ns)},
                          {"device_ms_without_kernel", ms(s.concurrency.copy_alone_ns)},
                          {"line", json(s.concurrency.copy_line)}};
  out["launches"] = s.launches;
  out["graph_launches"] = s.graph_launches;
  out["median_kernel_us"] = static_cast<double>(s.median_kernel_ns) / 1e3;
  out["median_launch_gap_us"] = static_cast<double>(s.median_launch_gap_ns) / 1e3;
  out["host_offer"] = json(p.host_offer);
  out["host_counters"] = json(p.host_counters);
  out["steps"] = steps(p);
  return out;
}

}  // namespace

std::string render_json(const SessionReport& report) {
  Json out;
  out["schema"] = kSchema;
  out["path"] = report.path;
  out["helpers_without_cuda_calls"] = report.helpers;
  out["driver_loaded_without_calls"] = Json::array();
  for (const SessionReport::Unseen& u : report.driver_without_calls) {
    out["driver_loaded_without_calls"].push_back({{"pid", u.pid}, {"command", u.command}});
  }
  out["skipped"] = report.skipped;
  out["nothing_recorded"] =
      report.nothing_recorded.empty() ? Json() : Json(report.nothing_recorded);
  out["processes"] = Json::array();
  for (const ProcessReport& p : report.processes) out["processes"].push_back(json(p));
  for (const ProcessReport& p : report.silent) out["processes"].push_back(json(p));
  // Names are valid UTF-8 from the reader; paths of this machine may not be: replaced, not thrown.
  return out.dump(1, ' ', false, Json::error_handler_t::replace) + '\n';
}

}  // namespace gpubusy::analysis
