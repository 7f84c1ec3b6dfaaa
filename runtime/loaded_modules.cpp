// SPDX-License-Identifier: Apache-2.0
#include "runtime/loaded_modules.hpp"

#include <string.h>

namespace gpubusy::runtime {
namespace {

constexpr std::size_t kMaxModules = 2048;  // PyTorch loads about 200
constexpr std::size_t kMaxFunctions = 1024;

struct Seen {
  std::uint64_t begin, end, path_hash;
};

// Changed only under the recorder's mutex. In zeroed memory: costs nothing until used.
struct State {
  LoaderView loader = {};
  const std::atomic<std::uint8_t>* reach = nullptr;
  std::size_t reach_count = 0;
  std::uint64_t generation = 0;  // of the loader's list when it was written; 0: not yet
  std::size_t count = 0;
  std::size_t left_out = 0;
  Seen seen[kMaxModules] = {};
  std::uint8_t written[kMaxFunctions] = {};
  bool wrote_reach = false;
  ModuleBatch batch = {};
};
constinit State g_state{};

std::uint64_t hash_of(const char* text, std::size_t size) noexcept {
  std::uint64_t h = 0xcbf29ce484222325u;
  for (std::size_t i = 0; i < size; ++i) {
    h = (h ^ static_cast<unsigned char>(text[i])) * 0x100000001b3u;
  }
  return h;
}

bool is_known(const Seen& s, std::size_t hint) noexcept {
  for (std::size_t i = 0; i < g_state.count; ++i) {
    const Seen& known = g_state.seen[(hint + i) % g_state.count];
    if (known.begin == s.begin && known.end == s.end && known.path_hash == s.path_hash) return true;
  }
  return false;
}

void write_module(DefinitionSink& sink, const ModuleBatch::Module& m, std::size_t position,
                  std::uint64_t now_ns) noexcept {
  const Seen s{m.begin, m.end, hash_of(m.path, m.path_size)};
  if (is_known(s, position)) return;
  if (g_state.count == kMaxModules) {
    ++g_state.left_out;
    return;
  }
  recording::ModuleRecord r{};
  r.header.type = recording::RecordType::kModule;
  r.header.value = static_cast<std::uint32_t>(g_state.count + 1);
  r.time_ns = now_ns;
  r.begin = m.begin;
  r.end = m.end;
  r.base = m.base;
  r.path_bytes = m.path_size;
  r.build_id_bytes = m.build_id_size;
  r.flags = m.cut ? 1 : 0;
  const Part parts[] = {{m.path, m.path_size}, {m.build_id, m.build_id_size}};
  if (sink.define(&r.header, sizeof r, parts, 2)) g_state.seen[g_state.count++] = s;
}

}  // namespace

void set_loader(const LoaderView& loader) noexcept { g_state.loader = loader; }
const LoaderView& loader() noexcept { return g_state.loader; }
void set_reach_table(const std::atomic<std::uint8_t>* reach, std::size_t count) noexcept {
  g_state.reach = reach;
  g_state.reach_count = count < kMaxFunctions ? count : kMaxFunctions;
}

void write_loaded_modules(DefinitionSink& sink, std::uint64_t now_ns) noexcept {
  const LoaderView& loader = g_state.loader;
  if (loader.generation == nullptr || loader.list == nullptr) return;
  // Taken before the walk: what is loaded meanwhile is found the next time.
  const std::uint64_t generation = loader.generation();
  if (generation == g_state.generation) return;
  g_state.generation = generation;
  bool more = true;
  for (std::size_t first = 0; more;) {
    g_state.batch.count = 0;
    more = loader.list(first, g_state.batch);
    if (g_state.batch.count == 0) break;
    for (std::size_t i = 0; i < g_state.batch.count; ++i) {
      write_module(sink, g_state.batch.modules[i], first + i, now_ns);
    }
    first += g_state.batch.count;
  }
}

void write_reach(DefinitionSink& sink, std::uint64_t now_ns) noexcept {
  bool is_new = !g_state.wrote_reach;
  for (std::size_t i = 0; i < g_state.reach_count; ++i) {
    const std::uint8_t now = g_state.reach[i].load(std::memory_order_relaxed);
    is_new = is_new || now != g_state.written[i];
    g_state.written[i] = now;
  }
  if (!is_new) return;
  g_state.wrote_reach = true;
  recording::ReachRecord r{};
  r.header.type = recording::RecordType::kReach;
  if (g_state.loader.has_driver != nullptr && g_state.loader.has_driver()) {
    r.header.value |= recording::kReachDriverLoaded;
  }
  r.time_ns = now_ns;
  r.function_count = static_cast<std::uint32_t>(g_state.reach_count);
  r.modules_left_out = static_cast<std::uint32_t>(g_state.left_out);
  const Part part{g_state.written, g_state.reach_count};
  if (!sink.define(&r.header, sizeof r, &part, 1)) g_state.wrote_reach = false;
}

void forget_loaded_modules() noexcept {
  g_state.generation = 0;
  g_state.count = 0;
  g_state.left_out = 0;
  g_state.wrote_reach = false;
}

}  // namespace gpubusy::runtime
