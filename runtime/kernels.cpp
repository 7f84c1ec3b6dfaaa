// SPDX-License-Identifier: Apache-2.0
#include "runtime/kernels.hpp"

#include <dlfcn.h>
#include <string.h>

#include "runtime/driver.hpp"
#include "runtime/no_cancel.hpp"
#include "runtime/pointer_map.hpp"
#include "runtime/recorder.hpp"

namespace gpubusy::runtime {
namespace {

// Locked in this order where one is changed while another is walked.
// libtorch_cuda of 2.13 registers 21,893 kernels.
constinit PointerMap<17> g_module_of;   // host function -> module handle
constinit PointerMap<17> g_registered;  // host function -> name
constinit PointerMap<16> g_known;       // function or handle -> StepMatch << 32 | kernel id
constinit PointerMap<16> g_by_name;     // hash of a name -> kernel id
constinit std::atomic<std::uint32_t> g_next_id{1};
constinit std::atomic<std::uint32_t> g_other_kernels{0};  // one id for all that do not fit

constexpr unsigned kMatchShift = 32;

// 0: it could not be written.
std::uint32_t define_kernel(const void* function, const char* name) noexcept {
  recording::KernelRecord record{};
  record.header.type = recording::RecordType::kKernel;
  // Two threads may meet a kernel at the same time: two ids with the same name do no harm.
  record.header.value = g_next_id.fetch_add(1, std::memory_order_relaxed);
  record.function = reinterpret_cast<std::uint64_t>(function);
  const std::size_t length = strnlen(name, 30000);
  record.name_bytes = static_cast<std::uint32_t>(length);
  const Part part{name, length};
  return definitions().define(&record.header, sizeof record, &part, 1) ? record.header.value : 0;
}

void remember(const void* function, StepMatch match, std::uint32_t id) noexcept {
  g_known.set(function, static_cast<std::uint64_t>(match) << kMatchShift | id);
}

std::uint32_t other_kernels() noexcept {
  std::uint32_t others = g_other_kernels.load(std::memory_order_relaxed);
  if (others != 0) return others;
  notice(recording::NoticeKind::kBudget,
         "more kernels than can be told apart: the others are counted as one");
  others = define_kernel(nullptr, "(other kernels)");
  g_other_kernels.store(others, std::memory_order_relaxed);
  return others;
}

// 64 bits of a name; template names are some hundred bytes long, so eight at a time.
std::uint64_t hash_of(const char* name) noexcept {
  std::size_t left = strlen(name);
  std::uint64_t hash = left * 0x9e3779b97f4a7c15ull;
  while (left > 0) {
    std::uint64_t word = 0;
    const std::size_t n = left < sizeof word ? left : sizeof word;
    memcpy(&word, name, n);
    hash = (hash ^ word) * 0xff51afd7ed558ccdull;
    hash ^= hash >> 32;
    name += n;
    left -= n;
  }
  return hash;
}

// A stub of a kernel that was registered before we could see it, and not a handle of the driver's?
bool is_host_code(const void* function) noexcept {
  dl_find_object found{};
  return _dl_find_object(const_cast<void*>(function), &found) == 0;  // takes no lock
}

}  // namespace

void register_kernel(void* module, const void* host_function, const char* name) noexcept {
  if (host_function == nullptr || name == nullptr) return;
  // In a full table a kernel stays without a name.
  g_registered.set(host_function, reinterpret_cast<std::uint64_t>(name));
  g_module_of.set(host_function, reinterpret_cast<std::uint64_t>(module));
  g_known.set(host_function, 0);  // it may have been met without its name
}

void unregister_module(void* module) noexcept {
  g_module_of.for_each([&](const void* function, std::uint64_t& owner) {
    if (owner != reinterpret_cast<std::uint64_t>(module)) return;
    owner = 0;
    g_registered.set(function, 0);
    g_known.set(function, 0);
  });
}

void forget_driver_kernels() noexcept {
  g_known.for_each([](const void* function, std::uint64_t& known) {
    if (g_registered.find(function) == 0) known = 0;
  });
}

const char* kernel_name(const void* function, recording::Layer layer) noexcept {
  if (const std::uint64_t name = g_registered.find(function)) {
    return reinterpret_cast<const char*>(name);
  }
  const NoCancel no_cancel;
  const Driver* d = driver();
  if (d == nullptr || function == nullptr) return nullptr;
  const char* name = nullptr;
  if (layer == recording::Layer::kDriver && d->func_get_name != nullptr &&
      d->func_get_name(&name, static_cast<CUfunction>(const_cast<void*>(function))) ==
          CUDA_SUCCESS) {
    return name;
  }
  // CUDA 12 on: a cudaKernel_t is a CUkernel, and cuLaunchKernel takes one in place of a function.
  if (d->kernel_get_name != nullptr && !is_host_code(function) &&
      d->kernel_get_name(&name, static_cast<CUkernel>(const_cast<void*>(function))) ==
          CUDA_SUCCESS) {
    return name;
  }
  return nullptr;
}

std::uint32_t kernel_id(const void* function, recording::Layer layer) noexcept {
  if (const auto id = static_cast<std::uint32_t>(g_known.find(function))) return id;
  if (!g_known.has_room()) return other_kernels();
  const char* name = kernel_name(function, layer);
  const std::uint32_t id = define_kernel(function, name == nullptr ? "" : name);
  if (id != 0) remember(function, known_step_match(function), id);
  return id;
}

std::uint32_t kernel_id_by_name(const char* name) noexcept {
  const auto* key = reinterpret_cast<const void*>(hash_of(name));
  if (const auto id = static_cast<std::uint32_t>(g_by_name.find(key))) return id;
  if (!g_by_name.has_room()) return other_kernels();
  const std::uint32_t id = define_kernel(nullptr, name);
  if (id != 0) g_by_name.set(key, id);
  return id;
}

StepMatch known_step_match(const void* function) noexcept {
  return static_cast<StepMatch>(g_known.find(function) >> kMatchShift);
}

void remember_step_match(const void* function, StepMatch match) noexcept {
  remember(function, match, static_cast<std::uint32_t>(g_known.find(function)));
}

void prepare_kernels_for_fork() noexcept {
  g_module_of.lock();
  g_registered.lock();
}

void release_kernels_after_fork(bool in_child) noexcept {
  if (!in_child) {
    g_registered.unlock();
    g_module_of.unlock();
    return;
  }
  g_registered.reset_lock_after_fork();
  g_module_of.reset_lock_after_fork();
  g_known.clear_after_fork();  // the child's file needs its own definitions
  g_by_name.clear_after_fork();
  g_next_id.store(1, std::memory_order_relaxed);
  g_other_kernels.store(0, std::memory_order_relaxed);
}

}  // namespace gpubusy::runtime
