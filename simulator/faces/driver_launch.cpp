// SPDX-License-Identifier: Apache-2.0
//
// The driver: modules, libraries, functions and launches.
#include <algorithm>

#include "simulator/core/work.hpp"
#include "simulator/faces/driver_export.hpp"
#include "simulator/faces/driver_handles.hpp"
#include "simulator/faces/occupancy.hpp"

using namespace gpubusy::sim;
using namespace gpubusy::sim::driver;

namespace {

int load(CUmodule* module, const void* image) {
  SIM_POINTER_OR_RETURN(module);
  SIM_POINTER_OR_RETURN(image);
  SIM_CONTEXT_OR_RETURN();
  *module = reinterpret_cast<CUmodule>(simulation().kernels.load_module(image));
  return CUDA_SUCCESS;
}

// Images are not read, so any name is found.
template <class Handle, class ModuleHandle>
int find_kernel(Handle* handle, ModuleHandle module, const char* name) {
  if (handle == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Module* m = checked<Module>(module);
  if (m == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *handle = reinterpret_cast<Handle>(simulation().kernels.find_in_module(m, name));
  return CUDA_SUCCESS;
}

int get_attribute(const Kernel& kernel, CUfunction_attribute attribute, int* value) {
  SIM_POINTER_OR_RETURN(value);
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 32; break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = 90; break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = kernel.max_dynamic_shared; break;
    default: *value = 0;
  }
  return CUDA_SUCCESS;
}

int set_attribute(Kernel& kernel, CUfunction_attribute attribute, int value) {
  if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
    if (value < 0 || value > kMaxSharedPerBlock) return CUDA_ERROR_INVALID_VALUE;
    kernel.max_dynamic_shared = value;
  }
  return CUDA_SUCCESS;
}

int launch(CUfunction function, Dim3 grid, Dim3 block, unsigned shared, CUstream stream,
           bool per_thread, void** arguments) {
  Kernel* kernel = checked<Kernel>(function);
  if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  SIM_STREAM_OR_RETURN(s, stream);
  return launch_kernel(*kernel, grid, block, shared, *s, arguments);
}

}  // namespace

#define SIM_KERNEL_OR_RETURN(variable, handle)      \
  Kernel* const variable = checked<Kernel>(handle); \
  if (variable == nullptr) return CUDA_ERROR_INVALID_HANDLE

// ---- modules and libraries

SIM_DRIVER(cuModuleLoad, (CUmodule * module, const char* file), (module, file)) {
  return load(module, file);
}
SIM_DRIVER(cuModuleLoadData, (CUmodule * module, const void* image), (module, image)) {
  return load(module, image);
}
SIM_DRIVER(cuModuleLoadDataEx,
           (CUmodule * module, const void* image, unsigned count, CUjit_option* options,
            void** values),
           (module, image, count, options, values)) {
  return load(module, image);
}
SIM_DRIVER(cuModuleLoadFatBinary, (CUmodule * module, const void* image), (module, image)) {
  return load(module, image);
}

SIM_DRIVER(cuModuleUnload, (CUmodule module), (module)) {
  Module* m = checked<Module>(module);
  if (m == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  m->magic = 0;  // its kernels may still be in a graph, so it is not freed
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuModuleGetLoadingMode, (CUmoduleLoadingMode * mode), (mode)) {
  SIM_POINTER_OR_RETURN(mode);
  *mode = CU_MODULE_LAZY_LOADING;
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuModuleGetFunction, (CUfunction * function, CUmodule module, const char* name),
           (function, module, name)) {
  return find_kernel(function, module, name);
}

SIM_DRIVER(cuModuleGetGlobal_v2,
           (CUdeviceptr * address, std::size_t* bytes, CUmodule module, const char* name),
           (address, bytes, module, name)) {
  return CUDA_ERROR_NOT_FOUND;
}

SIM_DRIVER(cuLibraryLoadData,
           (CUlibrary * library, const void* code, CUjit_option* jit, void** jit_values,
            unsigned jit_count, CUlibraryOption* options, void** values, unsigned count),
           (library, code, jit, jit_values, jit_count, options, values, count)) {
  if (library == nullptr || code == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *library = reinterpret_cast<CUlibrary>(simulation().kernels.load_module(code));
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuLibraryLoadFromFile,
           (CUlibrary * library, const char* file, CUjit_option* jit, void** jit_values,
            unsigned jit_count, CUlibraryOption* options, void** values, unsigned count),
           (library, file, jit, jit_values, jit_count, options, values, count)) {
  return cuLibraryLoadData_body(per_thread, library, file, jit, jit_values, jit_count, options,
                                values, count);
}

SIM_DRIVER(cuLibraryUnload, (CUlibrary library), (library)) {
  Module* m = checked<Module>(library);
  if (m == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  m->magic = 0;
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuLibraryGetKernel, (CUkernel * kernel, CUlibrary library, const char* name),
           (kernel, library, name)) {
  return find_kernel(kernel, library, name);
}

SIM_DRIVER(cuLibraryGetModule, (CUmodule * module, CUlibrary library), (module, library)) {
  SIM_POINTER_OR_RETURN(module);
  *module = reinterpret_cast<CUmodule>(library);
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuLibraryGetGlobal,
           (CUdeviceptr * address, std::size_t* bytes, CUlibrary library, const char* name),
           (address, bytes, library, name)) {
  return CUDA_ERROR_NOT_FOUND;
}

SIM_DRIVER(cuKernelGetFunction, (CUfunction * function, CUkernel kernel), (function, kernel)) {
  SIM_POINTER_OR_RETURN(function);
  SIM_KERNEL_OR_RETURN(k, kernel);
  *function = reinterpret_cast<CUfunction>(k);
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuKernelGetLibrary, (CUlibrary * library, CUkernel kernel), (library, kernel)) {
  SIM_POINTER_OR_RETURN(library);
  SIM_KERNEL_OR_RETURN(k, kernel);
  *library = reinterpret_cast<CUlibrary>(k->module);
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuKernelGetName, (const char** name, CUkernel kernel), (name, kernel)) {
  SIM_POINTER_OR_RETURN(name);
  SIM_KERNEL_OR_RETURN(k, kernel);
  *name = k->name;
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuKernelGetAttribute,
           (int* value, CUfunction_attribute attribute, CUkernel kernel, CUdevice device),
           (value, attribute, kernel, device)) {
  SIM_KERNEL_OR_RETURN(k, kernel);
  return get_attribute(*k, attribute, value);
}

SIM_DRIVER(cuKernelSetAttribute,
           (CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice device),
           (attribute, value, kernel, device)) {
  SIM_KERNEL_OR_RETURN(k, kernel);
  return set_attribute(*k, attribute, value);
}

SIM_DRIVER(cuKernelSetCacheConfig, (CUkernel kernel, CUfunc_cache config, CUdevice device),
           (kernel, config, device)) {
  SIM_KERNEL_OR_RETURN(k, kernel);
  return CUDA_SUCCESS;
}

// ---- functions

SIM_DRIVER(cuFuncGetName, (const char** name, CUfunction function), (name, function)) {
  SIM_POINTER_OR_RETURN(name);
  SIM_KERNEL_OR_RETURN(k, function);
  *name = k->name;
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuFuncGetModule, (CUmodule * module, CUfunction function), (module, function)) {
  SIM_POINTER_OR_RETURN(module);
  SIM_KERNEL_OR_RETURN(k, function);
  *module = reinterpret_cast<CUmodule>(k->module);
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuFuncGetAttribute, (int* value, CUfunction_attribute attribute, CUfunction function),
           (value, attribute, function)) {
  SIM_KERNEL_OR_RETURN(k, function);
  return get_attribute(*k, attribute, value);
}

SIM_DRIVER(cuFuncSetAttribute, (CUfunction function, CUfunction_attribute attribute, int value),
           (function, attribute, value)) {
  SIM_KERNEL_OR_RETURN(k, function);
  return set_attribute(*k, attribute, value);
}

SIM_DRIVER(cuFuncSetCacheConfig, (CUfunction function, CUfunc_cache config), (function, config)) {
  SIM_KERNEL_OR_RETURN(k, function);
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuFuncSetSharedMemConfig, (CUfunction function, CUsharedconfig config),
           (function, config)) {
  SIM_KERNEL_OR_RETURN(k, function);
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuFuncIsLoaded, (CUfunctionLoadingState * state, CUfunction function),
           (state, function)) {
  SIM_POINTER_OR_RETURN(state);
  SIM_KERNEL_OR_RETURN(k, function);
  *state = k->loaded.load() ? CU_FUNCTION_LOADING_STATE_LOADED : CU_FUNCTION_LOADING_STATE_UNLOADED;
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuFuncLoad, (CUfunction function), (function)) {
  SIM_KERNEL_OR_RETURN(k, function);
  k->loaded.store(true);
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuOccupancyMaxActiveBlocksPerMultiprocessor,
           (int* blocks, CUfunction function, int block_size, std::size_t shared),
           (blocks, function, block_size, shared)) {
  SIM_POINTER_OR_RETURN(blocks);
  SIM_KERNEL_OR_RETURN(k, function);
  *blocks = resident_blocks(block_size, shared);
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
           (int* blocks, CUfunction function, int block_size, std::size_t shared, unsigned flags),
           (blocks, function, block_size, shared, flags)) {
  return cuOccupancyMaxActiveBlocksPerMultiprocessor_body(per_thread, blocks, function, block_size,
                                                          shared);
}

SIM_DRIVER(cuOccupancyMaxPotentialBlockSize,
           (int* grid, int* block, CUfunction function, CUoccupancyB2DSize shared_of_block,
            std::size_t shared, int limit),
           (grid, block, function, shared_of_block, shared, limit)) {
  if (grid == nullptr || block == nullptr) return CUDA_ERROR_INVALID_VALUE;
  SIM_KERNEL_OR_RETURN(k, function);
  *block = limit > 0 ? std::min(limit, 1024) : 1024;
  const std::size_t bytes = shared_of_block != nullptr ? shared_of_block(*block) : shared;
  *grid = resident_blocks(*block, bytes) * static_cast<int>(simulation().parameters.sm_count);
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuOccupancyAvailableDynamicSMemPerBlock,
           (std::size_t * bytes, CUfunction function, int blocks, int block_size),
           (bytes, function, blocks, block_size)) {
  if (bytes == nullptr || blocks <= 0) return CUDA_ERROR_INVALID_VALUE;
  SIM_KERNEL_OR_RETURN(k, function);
  *bytes = static_cast<std::size_t>(std::min<double>(kMaxSharedPerBlock, kSharedPerSm / blocks));
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuOccupancyMaxPotentialClusterSize,
           (int* size, CUfunction function, const CUlaunchConfig* config),
           (size, function, config)) {
  SIM_POINTER_OR_RETURN(size);
  *size = 8;
  return CUDA_SUCCESS;
}

SIM_DRIVER(cuOccupancyMaxActiveClusters,
           (int* clusters, CUfunction function, const CUlaunchConfig* config),
           (clusters, function, config)) {
  SIM_POINTER_OR_RETURN(clusters);
  *clusters = std::max(1, static_cast<int>(simulation().parameters.sm_count) / 8);
  return CUDA_SUCCESS;
}

// ---- launches

SIM_DRIVER_PTSZ(cuLaunchKernel,
                (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                 unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                 CUstream stream, void** arguments, void** extra),
                (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream,
                 arguments, extra)) {
  return launch(function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared, stream,
                per_thread, arguments);
}

SIM_DRIVER_PTSZ(cuLaunchKernelEx,
                (const CUlaunchConfig* config, CUfunction function, void** arguments, void** extra),
                (config, function, arguments, extra)) {
  SIM_POINTER_OR_RETURN(config);
  return launch(function, {config->gridDimX, config->gridDimY, config->gridDimZ},
                {config->blockDimX, config->blockDimY, config->blockDimZ}, config->sharedMemBytes,
                config->hStream, per_thread, arguments);
}

SIM_DRIVER_PTSZ(cuLaunchCooperativeKernel,
                (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                 unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                 CUstream stream, void** arguments),
                (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream,
                 arguments)) {
  const Dim3 grid{grid_x, grid_y, grid_z}, block{block_x, block_y, block_z};
  // All blocks must be resident at once.
  const int resident = resident_blocks(static_cast<int>(block.count()), shared);
  if (static_cast<double>(grid.count()) > resident * simulation().parameters.sm_count) {
    return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
  }
  return launch(function, grid, block, shared, stream, per_thread, arguments);
}
