// SPDX-License-Identifier: Apache-2.0
//
// A CUDA runtime and driver in one library that keep account of misuse: dead events, and queries
// while a stream is captured by a thread that is not in relaxed mode. Launches and events share a
// lock, as a driver's do. cudaLaunchKernel calls cuLaunchKernel, as cudart does.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <set>

#undef cuEventElapsedTime

namespace {
pthread_mutex_t g_driver_lock = PTHREAD_MUTEX_INITIALIZER;
std::mutex g_mutex;
std::set<void*> g_live;
std::atomic<int> g_dead_uses{0}, g_capturing{0}, g_unsafe{0}, g_raise{0}, g_result{0};
std::atomic<unsigned long long> g_stream_id{20};
thread_local CUstreamCaptureMode t_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

struct DriverLock {
  DriverLock() { pthread_mutex_lock(&g_driver_lock); }
  ~DriverLock() { pthread_mutex_unlock(&g_driver_lock); }
};
bool alive(void* event) {
  const std::lock_guard lock(g_mutex);
  if (g_live.contains(event)) return true;
  ++g_dead_uses;
  return false;
}
void potentially_unsafe() {
  if (g_capturing > 0 && t_mode != CU_STREAM_CAPTURE_MODE_RELAXED) ++g_unsafe;
}
}  // namespace

extern "C" {
// ---- for the tests
int strict_dead_uses() { return g_dead_uses; }
int strict_unsafe_calls() { return g_unsafe; }
void strict_raise_in_next_launch(int signal) { g_raise = signal; }
void strict_fail_launches(int result) { g_result = result; }

// ---- driver
CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = reinterpret_cast<CUcontext>(0x1000);
  return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice* device) {
  *device = 0;
  return CUDA_SUCCESS;
}
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  std::swap(*mode, t_mode);
  return CUDA_SUCCESS;
}
CUresult cuEventCreate(CUevent* event, unsigned) {
  *event = static_cast<CUevent>(malloc(64));
  const std::lock_guard lock(g_mutex);
  g_live.insert(*event);
  return CUDA_SUCCESS;
}
CUresult cuEventDestroy_v2(CUevent event) {
  if (!alive(event)) return CUDA_ERROR_INVALID_HANDLE;
  const std::lock_guard lock(g_mutex);
  g_live.erase(event);
  return CUDA_SUCCESS;
}
CUresult cuEventRecord(CUevent event, CUstream) {
  const DriverLock lock;
  return alive(event) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
CUresult cuEventQuery(CUevent event) {
  const DriverLock lock;
  potentially_unsafe();
  return alive(event) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
CUresult cuEventElapsedTime(float* ms, CUevent a, CUevent b) {
  *ms = 0.5f;
  return alive(a) && alive(b) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
CUresult cuStreamCreate(CUstream* stream, unsigned) {
  potentially_unsafe();
  *stream = reinterpret_cast<CUstream>(0x2000);
  return CUDA_SUCCESS;
}
CUresult cuStreamGetId(CUstream, unsigned long long* id) {
  *id = g_stream_id;
  return CUDA_SUCCESS;
}
CUresult cuFuncGetName(const char** name, CUfunction) {
  *name = "driver_only_kernel";
  return CUDA_SUCCESS;
}
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                        unsigned, CUstream, void**, void**) {
  const DriverLock lock;
  if (const int signal = g_raise.exchange(0)) raise(signal);
  return static_cast<CUresult>(g_result.load());
}

// ---- runtime
cudaError_t cudaLaunchKernel(const void* f, dim3, dim3, void**, size_t, cudaStream_t stream) {
  return static_cast<cudaError_t>(cuLaunchKernel(static_cast<CUfunction>(const_cast<void*>(f)), 1,
                                                 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr));
}
cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t fn, void* data) {
  fn(data);
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaMalloc(void** ptr, size_t size) {
  *ptr = malloc(size);
  return cudaSuccess;
}
cudaError_t cudaFree(void* ptr) {
  free(ptr);
  return cudaSuccess;
}
cudaError_t cudaDeviceReset() {
  const std::lock_guard lock(g_mutex);
  g_live.clear();
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  *stream = reinterpret_cast<cudaStream_t>(0x5000);
  ++g_stream_id;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  ++g_capturing;
  return cudaSuccess;
}
// 0x99: a stream whose capture another thread has begun.
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t*) {
  if (stream == reinterpret_cast<cudaStream_t>(0x99)) return cudaErrorStreamCaptureWrongThread;
  --g_capturing;
  return cudaSuccess;
}
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*,
                            dim3*, int*) {}
void __cudaUnregisterFatBinary(void**) {}
}
