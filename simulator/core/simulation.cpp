// SPDX-License-Identifier: Apache-2.0
#include "simulator/core/simulation.hpp"

#include <cuda.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <new>

#include "simulator/core/api_call.hpp"

namespace gpubusy::sim {

constinit thread_local ThreadState t_thread;
constinit std::atomic<std::uint32_t> g_flags{0};

namespace {

alignas(Simulation) unsigned char g_storage[sizeof(Simulation)];
std::once_flag g_once;

constexpr std::uint32_t kLegacyStreamId = 7;

// As the driver reads it: up to the first entry that is no device, or one for the second time.
std::vector<int> visible_devices(const char* list, int count) {
  std::vector<int> devices;
  if (list == nullptr) {
    for (int i = 0; i < count; ++i) devices.push_back(i);
    return devices;
  }
  for (std::string_view rest = list; !rest.empty();) {
    const std::string entry(rest.substr(0, rest.find(',')));
    rest.remove_prefix(std::min(rest.size(), entry.size() + 1));
    int chosen = -1;
    if (entry.starts_with("GPU-")) {
      for (int i = 0; i < count; ++i) {
        if (physical_uuid_text(i).starts_with(entry)) chosen = i;
      }
    } else {
      char* end = nullptr;
      const long number = strtol(entry.c_str(), &end, 10);
      if (end != entry.c_str() && number >= 0 && number < count) chosen = static_cast<int>(number);
    }
    if (chosen < 0) break;
    // Named twice: the driver then shows no device at all.
    if (std::find(devices.begin(), devices.end(), chosen) != devices.end()) return {};
    devices.push_back(chosen);
  }
  return devices;
}

void set_up(Simulation& s) {
  LoadedParameters loaded = load_parameters();
  s.parameters = std::move(loaded.values);
  const Parameters& p = s.parameters;
  s.kernels.set_costs(p.kernel_us, p.kernel_scale,
                      read_kernel_table(p.kernel_table, loaded.problems));
  for (const std::string& problem : loaded.problems) {
    dprintf(STDERR_FILENO, "gpubusy-sim: %s; the default is used\n", problem.c_str());
  }
  s.latency_ns = static_cast<std::uint64_t>(p.launch_latency_us * 1000);
  s.graph_latency_ns = static_cast<std::uint64_t>(p.graph_latency_us * 1000);
  s.call_ns = static_cast<std::uint64_t>(p.call_us * 1000);
  s.memory_bytes = static_cast<std::size_t>(p.memory_gib * 1073741824.0);
  s.queue_depth = static_cast<std::size_t>(p.queue_depth);
  s.logs = p.log != 0;
  const std::vector<int> visible =
      visible_devices(getenv("CUDA_VISIBLE_DEVICES"), static_cast<int>(p.devices));
  const int count = static_cast<int>(visible.size());
  s.truth.configure(p.truth, static_cast<std::uint32_t>(count));
  for (int i = 0; i < count; ++i) {
    auto* device = new Device;
    device->index = i;
    device->physical = visible[static_cast<std::size_t>(i)];
    device->legacy = new Stream;
    device->legacy->id = kLegacyStreamId;
    device->legacy->device = device;
    device->legacy->is_legacy = true;
    device->primary.device = device;
    device->primary.id = static_cast<std::uint64_t>(i) + 1;
    device->primary.is_primary = true;
    s.devices.push_back(device);
  }
}

void after_fork_in_child() {
  const std::uint32_t flags = g_flags.load();
  if ((flags & kReady) == 0) return;
  Simulation& s = simulation();
  bool used = false;
  for (const Device* device : s.devices) used |= device->has_context.load();
  t_thread.depth = 0;
  t_thread.id = 0;
  t_thread.correlation = 0;
  s.truth.after_fork();
  // Another thread may have held the lock; it does not exist here. What it guards is not used
  // again: either nothing has been submitted yet, or every call is refused from now on.
  new (&s.scheduler.mutex) std::mutex;
  if (used) {
    g_flags.fetch_or(kPoisoned);
  } else {
    t_thread = ThreadState{};
    s.initialised.store(false);
  }
}

void make() {
  auto* s = new (g_storage) Simulation;
  set_up(*s);
  pthread_atfork(nullptr, nullptr, after_fork_in_child);
  std::uint32_t flags = kReady;
  if (s->truth.enabled()) flags |= kTracing;
  if (!s->parameters.fail.empty() || !s->parameters.stall.empty()) flags |= kFaults;
  g_flags.store(flags, std::memory_order_release);
}

}  // namespace

Simulation& simulation() noexcept {
  if ((g_flags.load(std::memory_order_acquire) & kReady) == 0) [[unlikely]] {
    std::call_once(g_once, make);
  }
  return *reinterpret_cast<Simulation*>(g_storage);
}

void physical_uuid(int physical, char* bytes16) noexcept {
  constexpr std::string_view kOurs = "gpubusy-sim";
  std::fill_n(bytes16, 16, '\0');
  kOurs.copy(bytes16, kOurs.size());
  bytes16[15] = static_cast<char>(physical);
}

std::string physical_uuid_text(int physical) {
  char bytes[16];
  physical_uuid(physical, bytes);
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    char digits[3];
    snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(bytes[i]));
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += digits;
  }
  return text;
}

std::uint32_t thread_id() noexcept {
  if (t_thread.id == 0) t_thread.id = static_cast<std::uint32_t>(syscall(SYS_gettid));
  return t_thread.id;
}

void log_stall(std::uint64_t start_ns, std::uint64_t end_ns, LoggedName& logged,
               const char* reason) noexcept {
  if (Observer* observer = g_observer.load(std::memory_order_acquire)) {
    observer->on_stall(reason, start_ns, end_ns);
  }
  TruthLog& truth = simulation().truth;
  if (!truth.enabled()) return;
  truth.write(truth::Stall{truth::Kind::kStall, truth.name_id(logged, reason), thread_id(),
                           t_thread.correlation, start_ns, end_ns});
}

void spend(std::uint64_t duration_ns, LoggedName& logged, const char* reason) noexcept {
  if (duration_ns == 0) return;
  const std::uint64_t start = now_ns();
  wait_until(start + duration_ns);
  log_stall(start, start + duration_ns, logged, reason);
}

Stream* resolve_stream(void* handle, bool per_thread) noexcept {
  if (handle != nullptr && handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD) {
    auto* stream = static_cast<Stream*>(handle);
    return stream->magic == Stream::kMagic ? stream : nullptr;
  }
  if (t_thread.current == nullptr) return nullptr;
  Device& device = *t_thread.current->device;
  if (handle == CU_STREAM_LEGACY || (handle == nullptr && !per_thread)) return device.legacy;
  Stream*& stream = t_thread.per_thread_streams[device.index];
  if (stream == nullptr) stream = new_stream(device, CU_STREAM_DEFAULT, 0);
  return stream;
}

Event* resolve_event(void* handle) noexcept {
  auto* event = static_cast<Event*>(handle);
  return event != nullptr && event->magic == Event::kMagic ? event : nullptr;
}

void ensure_primary_context(Device& device) noexcept {
  if (device.has_context.exchange(true)) return;
  static LoggedName logged;
  spend(static_cast<std::uint64_t>(simulation().parameters.context_ms * 1e6), logged,
        "context creation");
  if (Observer* observer = g_observer.load(std::memory_order_acquire)) {
    observer->on_resource(ResourceEvent::kContextCreated, &device.primary, nullptr);
  }
}

}  // namespace gpubusy::sim
