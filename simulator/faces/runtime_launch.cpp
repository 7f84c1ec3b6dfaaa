// SPDX-License-Identifier: Apache-2.0
//
// The runtime: what nvcc's generated code calls, kernels and launches.
#include <cstring>

#include "simulator/faces/occupancy.hpp"
#include "simulator/faces/runtime_export.hpp"

using namespace gpubusy::sim;
using namespace gpubusy::sim::runtime;

namespace gpubusy::sim::runtime {

Kernel* kernel_of(const void* function) noexcept {
  if (function == nullptr) return nullptr;
  if (Kernel* kernel = registry().find(function)) return kernel;
  // A cudaKernel_t may be passed where a host stub's address is expected. A stub is code, so
  // reading its first bytes is safe.
  const auto* candidate = static_cast<const Kernel*>(function);
  return candidate->magic == Kernel::kMagic ? const_cast<Kernel*>(candidate) : nullptr;
}

}  // namespace gpubusy::sim::runtime

namespace {

CUfunction handle_of(Kernel* kernel) { return reinterpret_cast<CUfunction>(kernel); }

bool is_launchable(dim3 grid, dim3 block) {
  const auto threads = std::uint64_t{block.x} * block.y * block.z;
  return threads >= 1 && threads <= 1024 && block.z <= 64 && grid.x >= 1 && grid.y >= 1 &&
         grid.z >= 1 && grid.y <= 65535 && grid.z <= 65535;
}

Result launch(bool per_thread, Kernel* kernel, dim3 grid, dim3 block, void** arguments,
              size_t shared, cudaStream_t stream) {
  SIM_ENSURE_CONTEXT();
  if (kernel == nullptr) return cudaErrorInvalidDeviceFunction;
  if (!is_launchable(grid, block)) return cudaErrorInvalidConfiguration;
  return driver_table(per_thread)
      .cuLaunchKernel(handle_of(kernel), grid.x, grid.y, grid.z, block.x, block.y, block.z,
                      static_cast<unsigned>(shared), stream, arguments, nullptr);
}

// ---- <<<...>>>, as older compilers translate it: the configuration waits here for the launch

struct CallConfiguration {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
};
constexpr int kMaxNestedCalls = 16;  // a launch may be an argument of another one
struct CallConfigurations {
  CallConfiguration stack[kMaxNestedCalls];
  int depth;
};
thread_local CallConfigurations t_configurations;

}  // namespace

SIM_EXPORT void** __cudaRegisterFatBinary(void*) {
  return reinterpret_cast<void**>(registry().add_fatbin());
}
SIM_EXPORT void __cudaRegisterFatBinaryEnd(void**) {}
SIM_EXPORT void __cudaUnregisterFatBinary(void** handle) {
  registry().remove_fatbin(reinterpret_cast<Registry::Fatbin*>(handle));
}
SIM_EXPORT char __cudaInitModule(void**) { return 1; }
SIM_EXPORT void __cudaRegisterFunction(void** handle, const char* host, char*, const char* name,
                                       int, void*, void*, void*, void*, int*) {
  registry().add_function(reinterpret_cast<Registry::Fatbin*>(handle), host, name);
}
SIM_EXPORT void __cudaRegisterVar(void**, char* host, char*, const char* name, int, size_t size,
                                  int, int) {
  registry().add_variable(host, name, size);
}
SIM_EXPORT void __cudaRegisterManagedVar(void**, void** host, char*, const char* name, int,
                                         size_t size, int, int) {
  registry().add_variable(host, name, size);
}
SIM_EXPORT void __cudaRegisterHostVar(void**, const char*, char*, size_t) {}
SIM_EXPORT void __cudaRegisterUnifiedTable(void**, void*) {}

SIM_EXPORT unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared,
                                                cudaStream_t stream) {
  CallConfigurations& calls = t_configurations;
  if (calls.depth == kMaxNestedCalls) return 1;  // nvcc's code then does not launch
  calls.stack[calls.depth++] = {grid, block, shared, stream};
  return 0;
}

SIM_EXPORT cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared,
                                                  void* stream) {
  CallConfigurations& calls = t_configurations;
  if (calls.depth == 0) return ended(cudaErrorMissingConfiguration);
  const CallConfiguration& call = calls.stack[--calls.depth];
  *grid = call.grid;
  *block = call.block;
  *shared = call.shared;
  *static_cast<cudaStream_t*>(stream) = call.stream;
  return cudaSuccess;
}

SIM_EXPORT cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  Kernel* found = registry().find(function);
  if (found == nullptr) return ended(cudaErrorInvalidDeviceFunction);
  *kernel = reinterpret_cast<cudaKernel_t>(found);
  return cudaSuccess;
}

SIM_RUNTIME(cudaGetKernel, (cudaKernel_t * kernel, const void* function), (kernel, function)) {
  Kernel* found = kernel_of(function);
  if (kernel == nullptr || found == nullptr) return cudaErrorInvalidDeviceFunction;
  *kernel = reinterpret_cast<cudaKernel_t>(found);
  return cudaSuccess;
}

SIM_RUNTIME(cudaGetFuncBySymbol, (cudaFunction_t * result, const void* function),
            (result, function)) {
  Kernel* found = kernel_of(function);
  if (result == nullptr || found == nullptr) return cudaErrorInvalidDeviceFunction;
  *result = reinterpret_cast<cudaFunction_t>(found);
  return cudaSuccess;
}

// ---- launches

SIM_RUNTIME_PTSZ(cudaLaunchKernel,
                 (const void* function, dim3 grid, dim3 block, void** arguments, size_t shared,
                  cudaStream_t stream),
                 (function, grid, block, arguments, shared, stream)) {
  return launch(per_thread, kernel_of(function), grid, block, arguments, shared, stream);
}

// What nvcc 13 generates: the kernel has been looked up by __cudaGetKernel.
SIM_RUNTIME_PTSZ(__cudaLaunchKernel,
                 (cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared,
                  cudaStream_t stream),
                 (kernel, grid, block, arguments, shared, stream)) {
  return launch(per_thread, reinterpret_cast<Kernel*>(kernel), grid, block, arguments, shared,
                stream);
}

SIM_RUNTIME_PTSZ(cudaLaunchKernelExC,
                 (const cudaLaunchConfig_t* config, const void* function, void** arguments),
                 (config, function, arguments)) {
  SIM_ENSURE_CONTEXT();
  Kernel* kernel = kernel_of(function);
  if (config == nullptr) return cudaErrorInvalidValue;
  if (kernel == nullptr) return cudaErrorInvalidDeviceFunction;
  if (!is_launchable(config->gridDim, config->blockDim)) return cudaErrorInvalidConfiguration;
  CUlaunchConfig driver_config{};
  driver_config.gridDimX = config->gridDim.x;
  driver_config.gridDimY = config->gridDim.y;
  driver_config.gridDimZ = config->gridDim.z;
  driver_config.blockDimX = config->blockDim.x;
  driver_config.blockDimY = config->blockDim.y;
  driver_config.blockDimZ = config->blockDim.z;
  driver_config.sharedMemBytes = static_cast<unsigned>(config->dynamicSmemBytes);
  driver_config.hStream = config->stream;
  // The runtime's attributes are the driver's, by another name.
  driver_config.attrs = reinterpret_cast<CUlaunchAttribute*>(config->attrs);
  driver_config.numAttrs = config->numAttrs;
  return driver_table(per_thread)
      .cuLaunchKernelEx(&driver_config, handle_of(kernel), arguments, nullptr);
}

SIM_RUNTIME_PTSZ(cudaLaunchCooperativeKernel,
                 (const void* function, dim3 grid, dim3 block, void** arguments, size_t shared,
                  cudaStream_t stream),
                 (function, grid, block, arguments, shared, stream)) {
  SIM_ENSURE_CONTEXT();
  Kernel* kernel = kernel_of(function);
  if (kernel == nullptr) return cudaErrorInvalidDeviceFunction;
  if (!is_launchable(grid, block)) return cudaErrorInvalidConfiguration;
  return driver_table(per_thread)
      .cuLaunchCooperativeKernel(handle_of(kernel), grid.x, grid.y, grid.z, block.x, block.y,
                                 block.z, static_cast<unsigned>(shared), stream, arguments);
}

// ---- functions

SIM_RUNTIME(cudaFuncGetAttributes, (cudaFuncAttributes * attributes, const void* function),
            (attributes, function)) {
  Kernel* kernel = kernel_of(function);
  if (attributes == nullptr) return cudaErrorInvalidValue;
  if (kernel == nullptr) return cudaErrorInvalidDeviceFunction;
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->ptxVersion = 90;
  attributes->binaryVersion = 90;
  attributes->maxDynamicSharedSizeBytes = kernel->max_dynamic_shared;
  attributes->preferredShmemCarveout = -1;
  return cudaSuccess;
}

SIM_RUNTIME(cudaFuncSetAttribute, (const void* function, cudaFuncAttribute attribute, int value),
            (function, attribute, value)) {
  Kernel* kernel = kernel_of(function);
  if (kernel == nullptr) return cudaErrorInvalidDeviceFunction;
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    if (value < 0 || value > kMaxSharedPerBlock) return cudaErrorInvalidValue;
    kernel->max_dynamic_shared = value;
  }
  return cudaSuccess;
}

SIM_RUNTIME(cudaKernelSetAttributeForDevice,
            (cudaKernel_t kernel, cudaFuncAttribute attribute, int value, int device),
            (kernel, attribute, value, device)) {
  return cudaFuncSetAttribute_body(per_thread, reinterpret_cast<const void*>(kernel), attribute,
                                   value);
}

SIM_RUNTIME(cudaFuncSetCacheConfig, (const void* function, cudaFuncCache config),
            (function, config)) {
  return kernel_of(function) == nullptr ? cudaErrorInvalidDeviceFunction : cudaSuccess;
}

SIM_RUNTIME(cudaFuncSetSharedMemConfig, (const void* function, cudaSharedMemConfig config),
            (function, config)) {
  return kernel_of(function) == nullptr ? cudaErrorInvalidDeviceFunction : cudaSuccess;
}

SIM_RUNTIME(cudaFuncGetName, (const char** name, const void* function), (name, function)) {
  Kernel* kernel = kernel_of(function);
  if (name == nullptr) return cudaErrorInvalidValue;
  if (kernel == nullptr) return cudaErrorInvalidDeviceFunction;
  *name = kernel->name;
  return cudaSuccess;
}

SIM_RUNTIME(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
            (int* blocks, const void* function, int block_size, size_t shared, unsigned flags),
            (blocks, function, block_size, shared, flags)) {
  if (blocks == nullptr) return cudaErrorInvalidValue;
  *blocks = resident_blocks(block_size, shared);
  return cudaSuccess;
}

SIM_RUNTIME(cudaOccupancyMaxActiveBlocksPerMultiprocessor,
            (int* blocks, const void* function, int block_size, size_t shared),
            (blocks, function, block_size, shared)) {
  if (blocks == nullptr) return cudaErrorInvalidValue;
  *blocks = resident_blocks(block_size, shared);
  return cudaSuccess;
}

SIM_RUNTIME(cudaOccupancyAvailableDynamicSMemPerBlock,
            (size_t * bytes, const void* function, int blocks, int block_size),
            (bytes, function, blocks, block_size)) {
  if (bytes == nullptr || blocks <= 0) return cudaErrorInvalidValue;
  *bytes = static_cast<size_t>(std::min<double>(kMaxSharedPerBlock, kSharedPerSm / blocks));
  return cudaSuccess;
}

SIM_RUNTIME(cudaOccupancyMaxPotentialClusterSize,
            (int* size, const void* function, const cudaLaunchConfig_t* config),
            (size, function, config)) {
  if (size == nullptr) return cudaErrorInvalidValue;
  *size = 8;
  return cudaSuccess;
}

SIM_RUNTIME(cudaOccupancyMaxActiveClusters,
            (int* clusters, const void* function, const cudaLaunchConfig_t* config),
            (clusters, function, config)) {
  if (clusters == nullptr) return cudaErrorInvalidValue;
  *clusters = std::max(1, static_cast<int>(simulation().parameters.sm_count) / 8);
  return cudaSuccess;
}

// ---- libraries

SIM_RUNTIME(cudaLibraryLoadData,
            (cudaLibrary_t * library, const void* code, cudaJitOption* jit, void** jit_values,
             unsigned jit_count, cudaLibraryOption* options, void** values, unsigned count),
            (library, code, jit, jit_values, jit_count, options, values, count)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(false).cuLibraryLoadData(reinterpret_cast<CUlibrary*>(library), code, nullptr,
                                               nullptr, 0, nullptr, nullptr, 0);
}

SIM_RUNTIME(cudaLibraryLoadFromFile,
            (cudaLibrary_t * library, const char* file, cudaJitOption* jit, void** jit_values,
             unsigned jit_count, cudaLibraryOption* options, void** values, unsigned count),
            (library, file, jit, jit_values, jit_count, options, values, count)) {
  SIM_ENSURE_CONTEXT();
  return driver_table(false).cuLibraryLoadFromFile(reinterpret_cast<CUlibrary*>(library), file,
                                                   nullptr, nullptr, 0, nullptr, nullptr, 0);
}

SIM_RUNTIME(cudaLibraryUnload, (cudaLibrary_t library), (library)) {
  return driver_table(false).cuLibraryUnload(reinterpret_cast<CUlibrary>(library));
}

SIM_RUNTIME(cudaLibraryGetKernel, (cudaKernel_t * kernel, cudaLibrary_t library, const char* name),
            (kernel, library, name)) {
  return driver_table(false).cuLibraryGetKernel(reinterpret_cast<CUkernel*>(kernel),
                                                reinterpret_cast<CUlibrary>(library), name);
}
