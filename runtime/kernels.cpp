// SPDX-License-Identifier: Apache-2.0
#include "runtime/kernels.hpp"

#include <string.h>
#include <sys/mman.h>

#include "runtime/driver.hpp"
#include "runtime/pointer_map.hpp"
#include "runtime/recorder.hpp"

namespace gpubusy::runtime {
namespace {

// libtorch_cuda of 2.13 registers 21,893 kernels.
constinit PointerMap<17> g_registered;  // host function -> name
constinit PointerMap<17> g_module_of;   // host function -> module handle
constinit PointerMap<16> g_ids;         // function or handle -> kernel id
constinit std::atomic<std::uint32_t> g_next_id{1};

}  // namespace

void register_kernel(void* module, const void* host_function, const char* name) noexcept {
  if (host_function == nullptr || name == nullptr) return;
  g_registered.set(host_function, reinterpret_cast<std::uint64_t>(name));
  g_module_of.set(host_function, reinterpret_cast<std::uint64_t>(module));
}

void unregister_module(void* module) noexcept {
  g_module_of.for_each([&](const void* function, std::uint64_t& owner) {
    if (owner != reinterpret_cast<std::uint64_t>(module)) return;
    owner = 0;
    g_registered.set(function, 0);
    g_ids.set(function, 0);
  });
}

void forget_driver_kernels() noexcept {
  g_ids.for_each([](const void* function, std::uint64_t& id) {
    if (g_registered.find(function) == 0) id = 0;
  });
}

const char* kernel_name(const void* function, recording::Layer layer) noexcept {
  if (const std::uint64_t name = g_registered.find(function)) {
    return reinterpret_cast<const char*>(name);
  }
  const Driver* d = driver();
  if (d == nullptr || function == nullptr) return nullptr;
  const char* name = nullptr;
  if (layer == recording::Layer::kDriver && d->func_get_name != nullptr &&
      d->func_get_name(&name, static_cast<CUfunction>(const_cast<void*>(function))) ==
          CUDA_SUCCESS) {
    return name;
  }
  // CUDA 12 on: a cudaKernel_t is a CUkernel, and cuLaunchKernel takes one in place of a function.
  if (d->kernel_get_name != nullptr &&
      d->kernel_get_name(&name, static_cast<CUkernel>(const_cast<void*>(function))) ==
          CUDA_SUCCESS) {
    return name;
  }
  return nullptr;
}

std::uint32_t kernel_id(const void* function, recording::Layer layer) noexcept {
  if (const std::uint64_t id = g_ids.find(function)) return static_cast<std::uint32_t>(id);
  const char* name = kernel_name(function, layer);
  if (name == nullptr) name = "";
  recording::KernelRecord record{};
  record.header.type = recording::RecordType::kKernel;
  // Two threads may meet a kernel at the same time: two ids with the same name do no harm.
  record.header.value = g_next_id.fetch_add(1, std::memory_order_relaxed);
  record.function = reinterpret_cast<std::uint64_t>(function);
  const std::size_t length = strnlen(name, 30000);
  record.name_bytes = static_cast<std::uint32_t>(length);
  const Part part{name, length};
  if (!definitions().define(&record.header, sizeof record, &part, 1)) return 0;
  g_ids.set(function, record.header.value);
  return record.header.value;
}

void prepare_kernels_for_fork() noexcept {
  g_registered.lock();
  g_module_of.lock();
}

void release_kernels_after_fork(bool in_child) noexcept {
  g_module_of.unlock();
  g_registered.unlock();
  if (!in_child) return;
  g_ids.clear_after_fork();  // the child's file needs its own definitions
  g_next_id.store(1, std::memory_order_relaxed);
}

}  // namespace gpubusy::runtime
