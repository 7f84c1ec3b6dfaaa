// SPDX-License-Identifier: Apache-2.0
//
// Driver calls beside the common ones, for the simulated device: memory apart from address space,
// batches of copies, peer copies of boxes, waits for a context, updates of graphs.
#include <cuda.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <vector>

namespace {

void* g_driver = nullptr;

template <class Function>
Function* driver(const char* name) {
  void* p = dlsym(g_driver, name);
  if (p == nullptr) std::printf("no %s\n", name);
  return reinterpret_cast<Function*>(p);
}

}  // namespace

#define DRIVER(symbol) driver<decltype(symbol)>(#symbol)
#define CHECK(...)                                          \
  if (const int result = (__VA_ARGS__); result != 0) {      \
    std::printf("%s:%d: %d\n", __FILE__, __LINE__, result); \
    return 1;                                               \
  }

int main() {
  g_driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (g_driver == nullptr) return std::puts(dlerror()), 2;
  CHECK(DRIVER(cuInit)(0));
  CUcontext context = nullptr;
  CHECK(driver<CUresult(CUcontext*, CUdevice)>("cuDevicePrimaryCtxRetain")(&context, 0));
  CHECK(DRIVER(cuCtxSetCurrent)(context));
  CUstream stream = nullptr;
  CHECK(DRIVER(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));

  // 6 MiB of memory, mapped into twice the address space.
  constexpr std::size_t kPiece = std::size_t{2} << 20;
  CUmemAllocationProp properties;
  std::memset(&properties, 0, sizeof properties);
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUdeviceptr address = 0;
  CHECK(DRIVER(cuMemAddressReserve)(&address, 6 * kPiece, 0, 0, 0));
  CUmemGenericAllocationHandle handle = 0;
  CHECK(DRIVER(cuMemCreate)(&handle, 3 * kPiece, &properties, 0));
  CHECK(DRIVER(cuMemMap)(address, 3 * kPiece, 0, handle, 0));
  CUmemAccessDesc access;
  std::memset(&access, 0, sizeof access);
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CHECK(DRIVER(cuMemSetAccess)(address, 3 * kPiece, &access, 1));
  CHECK(driver<CUresult(CUdeviceptr, unsigned, std::size_t, CUstream)>("cuMemsetD32Async")(
      address, 7, 1000, stream));

  void* pinned = nullptr;
  CHECK(DRIVER(cuMemHostAlloc)(&pinned, 3 * 4096, 0));
  CUdeviceptr to[3], from[3];
  std::size_t sizes[3] = {1000, 2000, 4000};
  for (std::size_t i = 0; i < 3; ++i) {
    to[i] = address + i * 4096;
    from[i] = reinterpret_cast<CUdeviceptr>(pinned) + i * 4096;
  }
  std::size_t index = 0;
  CUmemcpyAttributes attributes;
  std::memset(&attributes, 0, sizeof attributes);
  attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  using Batch = CUresult(CUdeviceptr*, CUdeviceptr*, std::size_t*, std::size_t, CUmemcpyAttributes*,
                         std::size_t*, std::size_t, CUstream);
  using BatchOf12 =
      CUresult(CUdeviceptr*, CUdeviceptr*, std::size_t*, std::size_t, CUmemcpyAttributes*,
               std::size_t*, std::size_t, std::size_t*, CUstream);
  CHECK(driver<Batch>("cuMemcpyBatchAsync_v2")(to, from, sizes, 3, &attributes, &index, 1, stream));
  std::size_t failed = 0;
  CHECK(driver<BatchOf12>("cuMemcpyBatchAsync")(from, to, sizes, 2, &attributes, &index, 1, &failed,
                                                stream));
  CUDA_MEMCPY3D_PEER box;
  std::memset(&box, 0, sizeof box);
  box.srcMemoryType = box.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  box.srcDevice = address;
  box.dstDevice = address + kPiece;
  box.srcContext = box.dstContext = context;
  box.srcPitch = box.dstPitch = 256;
  box.srcHeight = box.dstHeight = 8;
  box.WidthInBytes = 200;
  box.Height = 5;
  box.Depth = 3;
  CHECK(DRIVER(cuMemcpy3DPeerAsync)(&box, stream));
  CHECK(driver<CUresult(CUcontext)>("cuCtxSynchronize_v2")(context));

  // From CUDA 12 on this name means cuGraphInstantiateWithFlags, and the older form a version back.
  using Ask = CUresult(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);
  CUdriverProcAddressQueryResult status;
  void* instantiate = nullptr;
  CHECK(driver<Ask>("cuGetProcAddress_v2")("cuGraphInstantiate", &instantiate, 12000, 0, &status));
  CUgraph graph = nullptr;
  CHECK(DRIVER(cuGraphCreate)(&graph, 0));
  CUgraphExec exec = nullptr;
  CHECK(reinterpret_cast<CUresult (*)(CUgraphExec*, CUgraph, unsigned long long)>(instantiate)(
      &exec, graph, 0));
  CHECK(DRIVER(cuGraphUpload)(exec, stream));
  CUgraphExecUpdateResultInfo update;
  CHECK(driver<CUresult(CUgraphExec, CUgraph, CUgraphExecUpdateResultInfo*)>(
      "cuGraphExecUpdate_v2")(exec, graph, &update));
  CHECK(DRIVER(cuGraphExecDestroy)(exec));
  CHECK(DRIVER(cuGraphDestroy)(graph));

  CHECK(DRIVER(cuMemUnmap)(address, 3 * kPiece));
  CHECK(DRIVER(cuMemRelease)(handle));
  CHECK(DRIVER(cuMemAddressFree)(address, 6 * kPiece));
  CHECK(DRIVER(cuMemFreeHost)(pinned));
  std::puts("done");
}
