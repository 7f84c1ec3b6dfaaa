// SPDX-License-Identifier: Apache-2.0
//
// Memory: what is where, copies in every form, costs, and running out.
#include <cstring>
#include <numeric>
#include <vector>

#include "device_test.hpp"

GPUBUSY_FAKE_KERNEL(sim_1ms);
GPUBUSY_FAKE_KERNEL(sim_10ms);

extern "C" void __cudaRegisterVar(void** handle, char* host, char* device_address, const char* name,
                                  int external, size_t size, int constant, int global);

namespace gpubusy::sim::test {
namespace {

using MemoryTest = DeviceTest;

std::vector<unsigned char> pattern(size_t size) {
  std::vector<unsigned char> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<unsigned char>(i * 7 + i / 251);
  return bytes;
}

template <class T = unsigned char>
T* device_memory(size_t bytes) {
  void* pointer = nullptr;
  EXPECT_CUDA(cudaMalloc(&pointer, bytes));
  return static_cast<T*>(pointer);
}

TEST_F(MemoryTest, RoundTripsOfAllSizesAndKinds) {
  for (const size_t size :
       {size_t{1}, size_t{4}, size_t{16384}, size_t{16385}, size_t{65537}, size_t{5} << 20}) {
    const auto data = pattern(size);
    unsigned char* device = device_memory(size);
    unsigned char* other = device_memory(size);
    std::vector<unsigned char> back(size);
    ASSERT_CUDA(cudaMemcpy(device, data.data(), size, cudaMemcpyHostToDevice));
    ASSERT_CUDA(cudaMemcpy(other, device, size, cudaMemcpyDeviceToDevice));
    ASSERT_CUDA(cudaMemcpy(back.data(), other, size, cudaMemcpyDefault));
    EXPECT_EQ(back, data) << size;
    cudaStream_t stream = new_stream();
    void* pinned = nullptr;
    ASSERT_CUDA(cudaMallocHost(&pinned, size));
    launch(sim_1ms, stream);
    ASSERT_CUDA(cudaMemcpyAsync(pinned, device, size, cudaMemcpyDeviceToHost, stream));
    ASSERT_CUDA(cudaMemsetAsync(device, 0, size, stream));
    ASSERT_CUDA(cudaMemcpyAsync(device, pinned, size, cudaMemcpyHostToDevice, stream));
    ASSERT_CUDA(cudaMemcpyAsync(back.data(), device, size, cudaMemcpyDeviceToHost, stream));
    ASSERT_CUDA(cudaStreamSynchronize(stream));
    EXPECT_EQ(back, data) << size;
    ASSERT_CUDA(cudaFreeHost(pinned));
    ASSERT_CUDA(cudaFree(device));
    ASSERT_CUDA(cudaFree(other));
  }
}

TEST_F(MemoryTest, StagedCopyTakesTheBytesAtTheCall) {
  constexpr size_t kSize = 40000;
  auto data = pattern(kSize);
  const auto original = data;
  unsigned char* device = device_memory(kSize);
  cudaStream_t stream = new_stream();
  // Behind a host function, so that the copy cannot have been made when the source changes.
  ASSERT_CUDA(cudaLaunchHostFunc(
      stream,
      [](void*) {
        Clock c;
        while (c.ms() < 5) {
        }
      },
      nullptr));
  Clock clock;
  ASSERT_CUDA(cudaMemcpyAsync(device, data.data(), kSize, cudaMemcpyHostToDevice, stream));
  EXPECT_LT(clock.ms(), 4);
  std::fill(data.begin(), data.end(), 0);
  std::vector<unsigned char> back(kSize);
  ASSERT_CUDA(cudaMemcpyAsync(back.data(), device, kSize, cudaMemcpyDeviceToHost, stream));
  EXPECT_EQ(back, original);
  ASSERT_CUDA(cudaFree(device));
}

TEST_F(MemoryTest, PinnedCopyReturnsAtOnceAndPageableWaits) {
  constexpr size_t kSize = size_t{32} << 20;
  unsigned char* device = device_memory(kSize);
  std::vector<unsigned char> pageable(kSize, 1);
  void* pinned = nullptr;
  ASSERT_CUDA(cudaHostAlloc(&pinned, kSize, cudaHostAllocDefault));
  std::memset(pinned, 2, kSize);
  cudaStream_t stream = new_stream();
  ASSERT_CUDA(cudaMemset(device, 1, kSize));  // the first touch of the pages is not the copy's
  ASSERT_CUDA(cudaDeviceSynchronize());

  Clock slow;
  ASSERT_CUDA(cudaMemcpyAsync(device, pageable.data(), kSize, cudaMemcpyHostToDevice, stream));
  EXPECT_GE(slow.ms(), kSize / 8e6 * 0.99);  // 8 GB/s
  EXPECT_CUDA(cudaStreamQuery(stream));

  // The host may be busy with other things: the best of some tries.
  double call = 1e9;
  for (int i = 0; i < 5; ++i) {
    Event begin, end;
    Clock fast;
    begin.record(stream);
    ASSERT_CUDA(cudaMemcpyAsync(device, pinned, kSize, cudaMemcpyHostToDevice, stream));
    call = std::min(call, fast.ms());
    end.record(stream);
    ASSERT_CUDA(cudaStreamSynchronize(stream));
    const double wall = fast.ms(), device_ms = ms_between(begin, end);
    // Event time is no less than what this host took, though the modelled link is faster.
    EXPECT_GE(device_ms, kSize / 50e6);
    EXPECT_LE(device_ms, wall);
  }
  EXPECT_LT(call, 0.5);
  unsigned char last = 0;
  ASSERT_CUDA(cudaMemcpy(&last, device + kSize - 1, 1, cudaMemcpyDeviceToHost));
  EXPECT_EQ(last, 2);
  ASSERT_CUDA(cudaFree(device));
  ASSERT_CUDA(cudaFreeHost(pinned));
}

TEST_F(MemoryTest, WorkBehindACopyRunsAfterIt) {
  constexpr size_t kSize = size_t{32} << 20;
  unsigned char* device = device_memory(kSize);
  void* pinned = nullptr;
  ASSERT_CUDA(cudaHostAlloc(&pinned, kSize, cudaHostAllocDefault));
  cudaStream_t stream = new_stream();
  Event begin, copied, done;
  begin.record(stream);
  ASSERT_CUDA(cudaMemcpyAsync(device, pinned, kSize, cudaMemcpyHostToDevice, stream));
  copied.record(stream);
  for (int i = 0; i < 5; ++i) launch(sim_1ms, stream);
  done.record(stream);
  EXPECT_NEAR(ms_between(copied, done), 5, 0.05);
  EXPECT_GT(ms_between(begin, copied), 0.6);
  ASSERT_CUDA(cudaFree(device));
  ASSERT_CUDA(cudaFreeHost(pinned));
}

TEST_F(MemoryTest, PitchedCopiesAndMemsets) {
  constexpr size_t kWidth = 100, kHeight = 37;
  void* device = nullptr;
  size_t pitch = 0;
  ASSERT_CUDA(cudaMallocPitch(&device, &pitch, kWidth, kHeight));
  ASSERT_GE(pitch, kWidth);
  const auto data = pattern(kWidth * kHeight);
  ASSERT_CUDA(cudaMemset2D(device, pitch, 9, kWidth, kHeight));
  ASSERT_CUDA(cudaMemcpy2D(device, pitch, data.data(), kWidth, kWidth, kHeight - 1,
                           cudaMemcpyHostToDevice));
  std::vector<unsigned char> back(kWidth * kHeight);
  ASSERT_CUDA(
      cudaMemcpy2D(back.data(), kWidth, device, pitch, kWidth, kHeight, cudaMemcpyDeviceToHost));
  EXPECT_TRUE(std::equal(back.begin(), back.end() - kWidth, data.begin()));
  EXPECT_EQ(back.back(), 9);
  cudaMemcpy3DParms p{};
  p.srcPtr = {device, pitch, kWidth, kHeight};
  p.dstPtr = {back.data(), kWidth, kWidth, kHeight};
  p.extent = {kWidth, kHeight, 1};
  p.kind = cudaMemcpyDeviceToHost;
  std::fill(back.begin(), back.end(), 0);
  ASSERT_CUDA(cudaMemcpy3D(&p));
  EXPECT_TRUE(std::equal(back.begin(), back.end() - kWidth, data.begin()));
  ASSERT_CUDA(cudaFree(device));
}

TEST_F(MemoryTest, DriverMemsetsOfWideElements) {
  auto* device = device_memory<unsigned>(400);
  ASSERT_CUDA(cuMemsetD32(reinterpret_cast<CUdeviceptr>(device), 0x01020304, 100));
  unsigned back[100];
  ASSERT_CUDA(cudaMemcpy(back, device, sizeof back, cudaMemcpyDeviceToHost));
  for (const unsigned value : back) EXPECT_EQ(value, 0x01020304u);
  ASSERT_CUDA(cudaFree(device));
}

TEST_F(MemoryTest, ScalarThatAKernelWouldHaveComputedReadsZero) {
  auto* device = device_memory<float>(1024);
  const float ones[2] = {1, 1};
  ASSERT_CUDA(cudaMemcpy(device, ones, sizeof ones, cudaMemcpyHostToDevice));
  float value = -1;
  ASSERT_CUDA(cudaMemcpy(&value, device, sizeof value, cudaMemcpyDeviceToHost));
  EXPECT_EQ(value, 1);  // nothing ran since
  launch(sim_1ms, nullptr);
  ASSERT_CUDA(cudaMemcpy(&value, device, sizeof value, cudaMemcpyDeviceToHost));
  EXPECT_EQ(value, 0);  // what the kernel left there is not known
  ASSERT_CUDA(cudaMemcpy(device, ones, sizeof value, cudaMemcpyHostToDevice));
  launch(sim_1ms, nullptr);
  ASSERT_CUDA(cudaMemcpy(&value, device, sizeof value, cudaMemcpyDeviceToHost));
  EXPECT_EQ(value, 1);  // a scalar that the program itself put there
  ASSERT_CUDA(cudaFree(device));
}

TEST_F(MemoryTest, PointerAttributes) {
  unsigned char* device = device_memory(100);
  void *pinned = nullptr, *managed = nullptr;
  ASSERT_CUDA(cudaMallocHost(&pinned, 100));
  ASSERT_CUDA(cudaMallocManaged(&managed, 100, cudaMemAttachGlobal));
  std::vector<char> plain(10000);
  const auto type_of = [](const void* pointer) {
    cudaPointerAttributes attributes{};
    EXPECT_CUDA(cudaPointerGetAttributes(&attributes, pointer));
    return attributes.type;
  };
  EXPECT_EQ(type_of(device + 99), cudaMemoryTypeDevice);
  EXPECT_EQ(type_of(pinned), cudaMemoryTypeHost);
  EXPECT_EQ(type_of(managed), cudaMemoryTypeManaged);
  EXPECT_EQ(type_of(plain.data()), cudaMemoryTypeUnregistered);
  ASSERT_CUDA(cudaHostRegister(plain.data(), plain.size(), cudaHostRegisterDefault));
  EXPECT_EQ(type_of(plain.data() + 9999), cudaMemoryTypeHost);
  EXPECT_EQ(cudaHostRegister(plain.data(), 10, cudaHostRegisterDefault),
            cudaErrorHostMemoryAlreadyRegistered);
  cudaGetLastError();
  ASSERT_CUDA(cudaHostUnregister(plain.data()));
  EXPECT_EQ(type_of(plain.data()), cudaMemoryTypeUnregistered);
  unsigned memory_type = 0;
  EXPECT_EQ(cuPointerGetAttribute(&memory_type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                  reinterpret_cast<CUdeviceptr>(plain.data())),
            CUDA_ERROR_INVALID_VALUE);
  ASSERT_CUDA(cuPointerGetAttribute(&memory_type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                    reinterpret_cast<CUdeviceptr>(device)));
  EXPECT_EQ(memory_type, static_cast<unsigned>(CU_MEMORYTYPE_DEVICE));
  ASSERT_CUDA(cudaFree(device));
  ASSERT_CUDA(cudaFree(managed));
  ASSERT_CUDA(cudaFreeHost(pinned));
}

TEST_F(MemoryTest, CopiesThatDoNotFitAreRefused) {
  unsigned char* device = device_memory(4096);
  char host[8192];
  EXPECT_EQ(cudaMemcpy(device, host, 8192, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(host, host + 4096, 16, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(device, host, 16, static_cast<cudaMemcpyKind>(9)),
            cudaErrorInvalidMemcpyDirection);
  EXPECT_EQ(cudaMemset(host, 0, 16), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(host), cudaErrorInvalidValue);
  cudaGetLastError();
  ASSERT_CUDA(cudaFree(device));
}

TEST_F(MemoryTest, OutOfMemory) {
  size_t free_bytes = 0, total = 0;
  ASSERT_CUDA(cudaMemGetInfo(&free_bytes, &total));
  void* pointer = nullptr;
  EXPECT_EQ(cudaMalloc(&pointer, total + 1), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  ASSERT_CUDA(cudaMalloc(&pointer, total - (total >> 2)));
  size_t now_free = 0;
  ASSERT_CUDA(cudaMemGetInfo(&now_free, &total));
  EXPECT_LT(now_free, free_bytes);
  void* second = nullptr;
  EXPECT_EQ(cudaMalloc(&second, total / 2), cudaErrorMemoryAllocation);
  cudaGetLastError();
  ASSERT_CUDA(cudaFree(pointer));
  ASSERT_CUDA(cudaMemGetInfo(&now_free, &total));
  EXPECT_EQ(now_free, free_bytes);
}

TEST_F(MemoryTest, FreeWaitsForTheDevice) {
  unsigned char* device = device_memory(100);
  Clock clock;
  launch(sim_10ms, new_stream());
  ASSERT_CUDA(cudaFree(device));
  EXPECT_GE(clock.ms(), 10);
}

TEST_F(MemoryTest, StreamOrderedMemoryIsReused) {
  cudaStream_t stream = new_stream();
  void *first = nullptr, *second = nullptr;
  ASSERT_CUDA(cudaMallocAsync(&first, 5000, stream));
  Clock clock;
  launch(sim_10ms, stream);
  ASSERT_CUDA(cudaFreeAsync(first, stream));
  ASSERT_CUDA(cudaMallocAsync(&second, 5000, stream));
  EXPECT_LT(clock.ms(), 8);
  EXPECT_EQ(first, second);
  ASSERT_CUDA(cudaFreeAsync(second, stream));
}

TEST_F(MemoryTest, Symbols) {
  static int symbol;
  __cudaRegisterVar(nullptr, reinterpret_cast<char*>(&symbol), nullptr, "table", 0, 64, 0, 0);
  int numbers[16], back[16] = {};
  std::iota(numbers, numbers + 16, 1);
  ASSERT_CUDA(cudaMemcpyToSymbol(&symbol, numbers, sizeof numbers, 0, cudaMemcpyHostToDevice));
  ASSERT_CUDA(cudaMemcpyFromSymbol(back, &symbol, sizeof back, 0, cudaMemcpyDeviceToHost));
  EXPECT_TRUE(std::equal(numbers, numbers + 16, back));
  int unknown;
  EXPECT_EQ(cudaMemcpyToSymbol(&unknown, numbers, 4, 0, cudaMemcpyHostToDevice),
            cudaErrorInvalidSymbol);
  cudaGetLastError();
}

TEST_F(MemoryTest, CopiesBetweenDevices) {
  int count = 0;
  ASSERT_CUDA(cudaGetDeviceCount(&count));
  ASSERT_EQ(count, 2);
  const auto data = pattern(100000);
  unsigned char* first = device_memory(data.size());
  ASSERT_CUDA(cudaMemcpy(first, data.data(), data.size(), cudaMemcpyHostToDevice));
  ASSERT_CUDA(cudaSetDevice(1));
  unsigned char* second = device_memory(data.size());
  ASSERT_CUDA(cudaMemcpyPeer(second, 1, first, 0, data.size()));
  std::vector<unsigned char> back(data.size());
  ASSERT_CUDA(cudaMemcpy(back.data(), second, back.size(), cudaMemcpyDeviceToHost));
  EXPECT_EQ(back, data);
  cudaPointerAttributes attributes{};
  ASSERT_CUDA(cudaPointerGetAttributes(&attributes, second));
  EXPECT_EQ(attributes.device, 1);
  ASSERT_CUDA(cudaFree(second));
  ASSERT_CUDA(cudaSetDevice(0));
  ASSERT_CUDA(cudaFree(first));
}

}  // namespace
}  // namespace gpubusy::sim::test
