// SPDX-License-Identifier: Apache-2.0
#include "simulator/core/kernels.hpp"

#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "simulator/core/simulation.hpp"

namespace gpubusy::sim {
namespace {

std::mutex& modules_lock() {
  static auto* lock = new std::mutex;
  return *lock;
}

// ---- registration: 450 fat binaries with 21,900 kernels when torch is imported

struct Registered {
  const char* name;
  Kernel* kernel;  // made when first asked for
};
struct RegistryState {
  std::mutex lock;
  std::unordered_map<const void*, Registered> functions;
  std::unordered_map<const void*, Registry::Variable> variables;
};
RegistryState& state() {
  static auto* s = [] {
    auto* made = new RegistryState;
    made->functions.reserve(32768);
    return made;
  }();
  return *s;
}

// Bumped when a library goes, since its addresses may come again.
std::atomic<std::uint32_t> g_registry_epoch{1};

struct CachedLookup {
  const void* host;
  Kernel* kernel;
  std::uint32_t epoch;
};
constexpr std::size_t kLookups = 256;
thread_local CachedLookup t_lookups[kLookups];

}  // namespace

const char kLibraryImage[] = "gpubusy simulated library";

Registry& registry() noexcept {
  static Registry r;
  return r;
}

Registry::Fatbin* Registry::add_fatbin() { return new Fatbin; }

void Registry::add_function(Fatbin* fatbin, const void* host, const char* name) {
  RegistryState& s = state();
  std::lock_guard lock(s.lock);
  if (fatbin != nullptr) fatbin->functions.push_back(host);
  s.functions[host] = {name, nullptr};
}

void Registry::add_variable(const void* host, const char* name, std::size_t size) {
  RegistryState& s = state();
  std::lock_guard lock(s.lock);
  s.variables[host] = {name, size, {}};
}

void Registry::remove_fatbin(Fatbin* fatbin) {
  if (fatbin == nullptr) return;
  RegistryState& s = state();
  std::lock_guard lock(s.lock);
  for (const void* host : fatbin->functions) {
    const auto found = s.functions.find(host);
    if (found == s.functions.end()) continue;
    // The name goes away with the library; the kernel may still be in a graph or a log.
    if (Kernel* kernel = found->second.kernel; kernel != nullptr)
      kernel->name = strdup(kernel->name);
    s.functions.erase(found);
  }
  g_registry_epoch.fetch_add(1);
  delete fatbin;
}

Kernel* Registry::find(const void* host) {
  CachedLookup& cached = t_lookups[(reinterpret_cast<std::uintptr_t>(host) >> 4) % kLookups];
  const std::uint32_t epoch = g_registry_epoch.load(std::memory_order_relaxed);
  if (cached.host == host && cached.epoch == epoch) [[likely]]
    return cached.kernel;
  RegistryState& s = state();
  std::lock_guard lock(s.lock);
  const auto found = s.functions.find(host);
  if (found == s.functions.end()) return nullptr;
  if (found->second.kernel == nullptr) {
    found->second.kernel = new Kernel;
    found->second.kernel->name = found->second.name;
  }
  cached = {host, found->second.kernel, epoch};
  return found->second.kernel;
}

Registry::Variable* Registry::find_variable(const void* host) {
  RegistryState& s = state();
  std::lock_guard lock(s.lock);
  const auto found = s.variables.find(host);
  return found == s.variables.end() ? nullptr : &found->second;
}

// ---- modules

Module* Kernels::load_module(const void* image) {
  auto* module = new Module;
  module->is_simulated_library = image == kLibraryImage;
  return module;
}

Kernel* Kernels::find_in_module(Module* module, const char* name) {
  std::lock_guard lock(modules_lock());
  for (Kernel* kernel : module->kernels) {
    if (strcmp(kernel->name, name) == 0) return kernel;
  }
  auto* kernel = new Kernel;
  kernel->name = strdup(name);
  kernel->module = module;
  kernel->takes_work = module->is_simulated_library;
  module->kernels.push_back(kernel);
  return kernel;
}

// ---- costs

void Kernels::set_costs(double kernel_us, double scale, std::vector<KernelTime> table) {
  kernel_ns_ = kernel_us * 1000;
  scale_ = scale;
  table_ = std::move(table);
}

void Kernels::look_up_cost(Kernel& kernel) noexcept {
  // A fixed part (the launch itself, the tail) and a part for each wave of blocks.
  kernel.base_ns = std::min(kernel_ns_, 2000.0);
  kernel.wave_ns = kernel_ns_ - kernel.base_ns;
  for (const KernelTime& row : table_) {
    if (fnmatch(row.pattern.c_str(), kernel.name, 0) != 0) continue;
    kernel.base_ns = row.base_ns;
    kernel.wave_ns = row.wave_ns;
    kernel.takes_work = false;  // what was measured on a GPU counts for more than the model
    break;
  }
  kernel.costed.store(true, std::memory_order_release);
}

Kernels::Cost Kernels::cost(Kernel& kernel, Dim3 grid, Dim3 block, std::uint32_t shared_bytes,
                            void** arguments) noexcept {
  if (!kernel.costed.load(std::memory_order_acquire)) [[unlikely]]
    look_up_cost(kernel);
  const Parameters& p = simulation().parameters;
  const double threads = static_cast<double>(std::uint64_t{(block.count() + 31) / 32} * 32);
  double resident = std::clamp(2048.0 / threads, 1.0, 32.0);
  if (shared_bytes > 0) {
    resident = std::clamp(kSharedPerSm / (shared_bytes + 1024.0), 1.0, resident);
  }
  const double waves = static_cast<double>(grid.count()) /
                       (p.sm_count * static_cast<double>(static_cast<int>(resident)));
  double ns;
  if (kernel.takes_work && arguments != nullptr) {
    const Work& work = *static_cast<const Work*>(arguments[0]);
    const double compute = work.flops / (p.gemm_tflops * 1e3 * work.rate_share);
    ns = 2000 + std::max(compute, work.bytes / p.memory_gbps);
  } else {
    ns = kernel.base_ns + kernel.wave_ns * std::max(waves, 1.0);
  }
  return {static_cast<std::uint64_t>(ns * scale_),
          static_cast<float>(std::clamp(waves, 1 / p.sm_count, 1.0))};
}

}  // namespace gpubusy::sim
