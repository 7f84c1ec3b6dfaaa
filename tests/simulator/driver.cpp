// SPDX-License-Identifier: Apache-2.0
//
// The driver's side: entry points, contexts, names of kernels; and what a forked child gets.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "device_test.hpp"

GPUBUSY_FAKE_KERNEL(sim_1ms);
GPUBUSY_FAKE_KERNEL(sim_10ms);

namespace gpubusy::sim::test {
namespace {

using Driver = DeviceTest;

void* entry(const char* name, int version, cuuint64_t flags = 0,
            CUdriverProcAddressQueryResult* status = nullptr) {
  void* found = nullptr;
  CUdriverProcAddressQueryResult unused;
  cuGetProcAddress_v2(name, &found, version, flags, status != nullptr ? status : &unused);
  return found;
}

void* symbol(const char* name) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  return dlsym(library, name);
}

TEST_F(Driver, EntryPointsFollowTheVersion) {
  EXPECT_EQ(entry("cuCtxCreate", 2000), symbol("cuCtxCreate"));
  EXPECT_EQ(entry("cuCtxCreate", 11000), symbol("cuCtxCreate_v2"));
  EXPECT_EQ(entry("cuCtxCreate", 13000), symbol("cuCtxCreate_v4"));
  EXPECT_EQ(entry("cuMemAlloc", 13000), symbol("cuMemAlloc_v2"));
  EXPECT_EQ(entry("cuGetProcAddress", 11030), symbol("cuGetProcAddress"));
  EXPECT_EQ(entry("cuGetProcAddress", 12000), symbol("cuGetProcAddress_v2"));
  EXPECT_EQ(entry("cuGraphInstantiate", 12000), symbol("cuGraphInstantiateWithFlags"));
}

TEST_F(Driver, EntryPointsFollowTheDefaultStream) {
  const cuuint64_t per_thread = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  EXPECT_EQ(entry("cuLaunchKernel", 13000), symbol("cuLaunchKernel"));
  EXPECT_EQ(entry("cuLaunchKernel", 13000, per_thread), symbol("cuLaunchKernel_ptsz"));
  EXPECT_EQ(entry("cuMemcpyHtoD", 13000, per_thread), symbol("cuMemcpyHtoD_v2_ptds"));
  EXPECT_EQ(entry("cuMemAlloc", 13000, per_thread), symbol("cuMemAlloc_v2"));
}

TEST_F(Driver, EntryPointsThatAreNotThere) {
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
  EXPECT_EQ(entry("cuNoSuchFunction", 13000, 0, &status), nullptr);
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  EXPECT_EQ(entry("cuLaunchKernelEx", 11000, 0, &status), nullptr);
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
  void* found = &status;
  EXPECT_EQ(cuGetProcAddress_v2("cuNoSuchFunction", &found, 13000, 0, &status),
            CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(found, nullptr);
}

TEST_F(Driver, UnsimulatedFunctionsSaySo) {
  auto* function = reinterpret_cast<CUresult (*)(...)>(entry("cuTexRefCreate", 13000));
  ASSERT_NE(function, nullptr);
  EXPECT_EQ(function(nullptr), CUDA_ERROR_NOT_SUPPORTED);
}

TEST_F(Driver, NamesOfKernels) {
  cudaKernel_t kernel = nullptr;
  ASSERT_CUDA(__cudaGetKernel(&kernel, sim_1ms.stub()));
  const char* name = nullptr;
  ASSERT_CUDA(cudaFuncGetName(&name, sim_1ms.stub()));
  EXPECT_STREQ(name, "sim_1ms");
  ASSERT_CUDA(cuKernelGetName(&name, reinterpret_cast<CUkernel>(kernel)));
  EXPECT_STREQ(name, "sim_1ms");
  ASSERT_CUDA(cuFuncGetName(&name, reinterpret_cast<CUfunction>(kernel)));
  EXPECT_STREQ(name, "sim_1ms");
  EXPECT_CUDA(__cudaLaunchKernel(kernel, 1, 32, nullptr, 0, nullptr));
  cudaFunction_t function = nullptr;
  ASSERT_CUDA(cudaGetFuncBySymbol(&function, sim_1ms.stub()));
  EXPECT_CUDA(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, nullptr));
}

TEST_F(Driver, BadLaunches) {
  int not_a_kernel = 0;
  EXPECT_EQ(cudaLaunchKernel(&not_a_kernel, 1, 32, nullptr, 0, nullptr),
            cudaErrorInvalidDeviceFunction);
  EXPECT_EQ(cudaLaunchKernel(sim_1ms.stub(), 1, 1025, nullptr, 0, nullptr),
            cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaPeekAtLastError(), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
  EXPECT_CUDA(cudaGetLastError());
  EXPECT_EQ(cudaLaunchCooperativeKernel(sim_1ms.stub(), dim3(1 << 20), 256, nullptr, 0, nullptr),
            cudaErrorCooperativeLaunchTooLarge);
  cudaGetLastError();
}

TEST_F(Driver, ModulesOfTheProgramsOwn) {
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  ASSERT_CUDA(cuModuleLoadData(&module, "an image"));
  ASSERT_CUDA(cuModuleGetFunction(&function, module, "triton_poi_fused_add_0"));
  const char* name = nullptr;
  ASSERT_CUDA(cuFuncGetName(&name, function));
  EXPECT_STREQ(name, "triton_poi_fused_add_0");
  EXPECT_CUDA(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, nullptr));
  EXPECT_CUDA(cuModuleUnload(module));
}

TEST_F(Driver, ContextsFollowTheDevice) {
  CUcontext first = nullptr, second = nullptr;
  ASSERT_CUDA(cuCtxGetCurrent(&first));
  ASSERT_CUDA(cudaSetDevice(1));
  ASSERT_CUDA(cuCtxGetCurrent(&second));
  EXPECT_NE(first, second);
  ASSERT_CUDA(cuCtxPushCurrent(first));
  int device = -1;
  ASSERT_CUDA(cudaGetDevice(&device));
  EXPECT_EQ(device, 0);
  ASSERT_CUDA(cuCtxPopCurrent(nullptr));
  ASSERT_CUDA(cudaGetDevice(&device));
  EXPECT_EQ(device, 1);
  cudaStream_t stream = new_stream();
  CUcontext of_stream = nullptr;
  ASSERT_CUDA(cuStreamGetCtx(stream, &of_stream));
  EXPECT_EQ(of_stream, second);
  ASSERT_CUDA(cudaSetDevice(0));
  EXPECT_EQ(cudaSetDevice(2), cudaErrorInvalidDevice);
  cudaGetLastError();
}

TEST_F(Driver, StreamNumbers) {
  unsigned long long id = 0;
  ASSERT_CUDA(cudaStreamGetId(nullptr, &id));
  EXPECT_EQ(id, 7u);
  ASSERT_CUDA(cudaStreamGetId(new_stream(), &id));
  EXPECT_GE(id, 13u);
}

TEST_F(Driver, DestroyedHandlesAreKnownAsSuch) {
  cudaStream_t stream = new_stream();
  ASSERT_CUDA(cudaStreamDestroy(stream));
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
  cudaGetLastError();
}

TEST_F(Driver, ForkedChildCannotUseTheDevice) {
  launch(sim_1ms, nullptr);
  const pid_t child = fork();
  if (child == 0) {
    int count = 0;
    const bool refused = cudaGetDeviceCount(&count) == cudaErrorInitializationError &&
                         cudaDeviceSynchronize() == cudaErrorInitializationError;
    exit(refused ? 0 : 1);  // with all exit handlers: none may hang
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_CUDA(cudaDeviceSynchronize());
}

}  // namespace
}  // namespace gpubusy::sim::test
