// SPDX-License-Identifier: Apache-2.0
//
// Capture of streams and graphs: shape, timing, and what capture does not allow.
#include <atomic>
#include <thread>
#include <vector>

#include "device_test.hpp"

GPUBUSY_FAKE_KERNEL(sim_1ms);
GPUBUSY_FAKE_KERNEL(sim_10ms);

namespace gpubusy::sim::test {
namespace {

using Graphs = DeviceTest;
constexpr double kExact = 0.002;

size_t node_count(cudaGraph_t graph) {
  size_t count = 0;
  EXPECT_CUDA(cudaGraphGetNodes(graph, nullptr, &count));
  return count;
}

// Replays behind a running kernel, so that the time is the graph's alone.
double replay_ms(cudaGraph_t graph) {
  cudaGraphExec_t exec = nullptr;
  EXPECT_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  cudaStream_t stream = new_stream();
  Event begin, end;
  launch(sim_10ms, stream);
  begin.record(stream);
  EXPECT_CUDA(cudaGraphLaunch(exec, stream));
  end.record(stream);
  const double ms = ms_between(begin, end);
  EXPECT_CUDA(cudaGraphExecDestroy(exec));
  return ms;
}

cudaError_t cleared(cudaError_t result) {
  cudaGetLastError();
  return result;
}

TEST_F(Graphs, CapturedWorkRunsWhenReplayed) {
  cudaStream_t stream = new_stream();
  ASSERT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  cudaStreamCaptureStatus status;
  ASSERT_CUDA(cudaStreamIsCapturing(stream, &status));
  EXPECT_EQ(status, cudaStreamCaptureStatusActive);
  for (int i = 0; i < 3; ++i) launch(sim_1ms, stream);
  cudaGraph_t graph = nullptr;
  ASSERT_CUDA(cudaStreamEndCapture(stream, &graph));
  EXPECT_CUDA(cudaStreamQuery(stream));  // nothing ran
  EXPECT_EQ(node_count(graph), 3u);
  EXPECT_NEAR(replay_ms(graph), 3, kExact);
  EXPECT_NEAR(replay_ms(graph), 3, kExact);
  ASSERT_CUDA(cudaGraphDestroy(graph));
}

TEST_F(Graphs, ForkedStreamsBecomeBranches) {
  cudaStream_t origin = new_stream(), side = new_stream();
  Event fork, join;
  ASSERT_CUDA(cudaStreamBeginCapture(origin, cudaStreamCaptureModeGlobal));
  launch(sim_1ms, origin, kSmallGrid);
  fork.record(origin);
  ASSERT_CUDA(cudaStreamWaitEvent(side, fork, 0));
  launch(sim_1ms, side, kSmallGrid);
  launch(sim_1ms, origin, kSmallGrid);
  join.record(side);
  ASSERT_CUDA(cudaStreamWaitEvent(origin, join, 0));
  launch(sim_1ms, origin, kSmallGrid);
  cudaGraph_t graph = nullptr;
  ASSERT_CUDA(cudaStreamEndCapture(origin, &graph));
  EXPECT_EQ(node_count(graph), 4u);
  size_t edges = 0;
  ASSERT_CUDA(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges));
  EXPECT_EQ(edges, 4u);
  EXPECT_NEAR(replay_ms(graph), 3, kExact);
  // The side stream is a normal one again.
  launch(sim_1ms, side);
  EXPECT_CUDA(cudaStreamSynchronize(side));
  ASSERT_CUDA(cudaGraphDestroy(graph));
}

TEST_F(Graphs, CopiesAndHostFunctionsAreReplayed) {
  constexpr size_t kSize = 100000;
  void *device = nullptr, *pinned = nullptr;
  ASSERT_CUDA(cudaMalloc(&device, kSize));
  ASSERT_CUDA(cudaMallocHost(&pinned, 2 * kSize));
  auto* from = static_cast<unsigned char*>(pinned);
  unsigned char* to = from + kSize;
  static std::atomic<int> calls;
  calls = 0;
  cudaStream_t stream = new_stream();
  ASSERT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  ASSERT_CUDA(cudaMemcpyAsync(device, from, kSize, cudaMemcpyHostToDevice, stream));
  launch(sim_1ms, stream);
  ASSERT_CUDA(cudaMemcpyAsync(to, device, kSize, cudaMemcpyDeviceToHost, stream));
  ASSERT_CUDA(cudaLaunchHostFunc(
      stream, [](void*) { ++calls; }, nullptr));
  cudaGraph_t graph = nullptr;
  ASSERT_CUDA(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t exec = nullptr;
  ASSERT_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  for (int value = 1; value <= 3; ++value) {
    from[kSize - 1] = static_cast<unsigned char>(value);
    ASSERT_CUDA(cudaGraphLaunch(exec, stream));
    ASSERT_CUDA(cudaStreamSynchronize(stream));
    EXPECT_EQ(to[kSize - 1], value);
    EXPECT_EQ(calls, value);
  }
  ASSERT_CUDA(cudaGraphExecDestroy(exec));
  ASSERT_CUDA(cudaGraphDestroy(graph));
  ASSERT_CUDA(cudaFree(device));
  ASSERT_CUDA(cudaFreeHost(pinned));
}

TEST_F(Graphs, BuiltByHand) {
  cudaGraph_t graph = nullptr, child = nullptr;
  ASSERT_CUDA(cudaGraphCreate(&graph, 0));
  ASSERT_CUDA(cudaGraphCreate(&child, 0));
  cudaKernelNodeParams kernel{};
  kernel.func = const_cast<void*>(sim_1ms.stub());
  kernel.gridDim = kFullGrid;
  kernel.blockDim = kBlock;
  cudaGraphNode_t first, second, third, inner;
  ASSERT_CUDA(cudaGraphAddKernelNode(&inner, child, nullptr, 0, &kernel));
  ASSERT_CUDA(cudaGraphAddKernelNode(&first, graph, nullptr, 0, &kernel));
  ASSERT_CUDA(cudaGraphAddChildGraphNode(&second, graph, &first, 1, child));
  ASSERT_CUDA(cudaGraphAddKernelNode(&third, graph, &second, 1, &kernel));
  cudaGraphNodeType type;
  ASSERT_CUDA(cudaGraphNodeGetType(second, &type));
  EXPECT_EQ(type, cudaGraphNodeTypeGraph);
  EXPECT_NEAR(replay_ms(graph), 3, kExact);
  ASSERT_CUDA(cudaGraphAddDependencies(graph, &third, &first, nullptr, 1));
  cudaGraphExec_t exec = nullptr;
  EXPECT_EQ(cleared(cudaGraphInstantiate(&exec, graph, 0)), cudaErrorInvalidValue);  // a cycle
  ASSERT_CUDA(cudaGraphDestroy(graph));
  ASSERT_CUDA(cudaGraphDestroy(child));
}

// ---- what is not allowed

void begin(cudaStream_t stream, cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal) {
  ASSERT_CUDA(cudaStreamBeginCapture(stream, mode));
  launch(sim_1ms, stream);
}
cudaError_t end(cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  const cudaError_t result = cleared(cudaStreamEndCapture(stream, &graph));
  EXPECT_EQ(graph == nullptr, result != cudaSuccess);
  if (graph != nullptr) cudaGraphDestroy(graph);
  return result;
}

TEST_F(Graphs, SynchronizingACapturingStreamEndsTheCapture) {
  cudaStream_t stream = new_stream();
  begin(stream);
  EXPECT_EQ(cleared(cudaStreamSynchronize(stream)), cudaErrorStreamCaptureUnsupported);
  cudaStreamCaptureStatus status;
  ASSERT_CUDA(cudaStreamIsCapturing(stream, &status));
  EXPECT_EQ(status, cudaStreamCaptureStatusInvalidated);
  EXPECT_EQ(cleared(cudaLaunchKernel(sim_1ms.stub(), 1, 1, nullptr, 0, stream)),
            cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(end(stream), cudaErrorStreamCaptureInvalidated);
}

TEST_F(Graphs, UnsafeCallsOfOtherThreadsInGlobalMode) {
  cudaStream_t stream = new_stream();
  Event event;
  event.record(new_stream());
  const auto elsewhere = [&](auto call) {
    cudaError_t result = cudaSuccess;
    std::thread([&] { result = cleared(call()); }).join();
    return result;
  };
  const auto query = [&] { return cudaEventQuery(event); };
  const auto query_relaxed = [&] {
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaThreadExchangeStreamCaptureMode(&mode);
    EXPECT_EQ(mode, cudaStreamCaptureModeGlobal);
    return cudaEventQuery(event);
  };
  cudaDeviceSynchronize();
  begin(stream);
  EXPECT_CUDA(elsewhere(query_relaxed));
  EXPECT_CUDA(end(stream));
  begin(stream);
  EXPECT_EQ(elsewhere(query), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(end(stream), cudaErrorStreamCaptureInvalidated);
  begin(stream, cudaStreamCaptureModeThreadLocal);
  EXPECT_CUDA(elsewhere(query));
  EXPECT_CUDA(end(stream));
}

TEST_F(Graphs, AllocationInGlobalModeAndInRelaxed) {
  cudaStream_t stream = new_stream();
  void* pointer = nullptr;
  begin(stream, cudaStreamCaptureModeRelaxed);
  EXPECT_CUDA(cudaMalloc(&pointer, 100));
  EXPECT_CUDA(end(stream));
  begin(stream);
  EXPECT_EQ(cleared(cudaMalloc(&pointer, 100)), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(end(stream), cudaErrorStreamCaptureInvalidated);
}

TEST_F(Graphs, LegacyStreamWouldWaitForABlockingStream) {
  cudaStream_t blocking = new_stream(cudaStreamDefault), apart = new_stream();
  begin(blocking);
  EXPECT_EQ(cleared(cudaLaunchKernel(sim_1ms.stub(), 1, 1, nullptr, 0, nullptr)),
            cudaErrorStreamCaptureImplicit);
  EXPECT_EQ(end(blocking), cudaErrorStreamCaptureInvalidated);
  begin(apart);
  launch(sim_1ms, nullptr);
  EXPECT_CUDA(end(apart));
  EXPECT_NE(cleared(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal)), cudaSuccess);
}

TEST_F(Graphs, UnjoinedAndIsolatedWork) {
  cudaStream_t origin = new_stream(), side = new_stream();
  Event fork, outside;
  outside.record(side);
  begin(origin);
  fork.record(origin);
  ASSERT_CUDA(cudaStreamWaitEvent(side, fork, 0));
  launch(sim_1ms, side);
  EXPECT_EQ(end(origin), cudaErrorStreamCaptureUnjoined);
  begin(origin);
  EXPECT_EQ(cleared(cudaStreamWaitEvent(origin, outside, 0)), cudaErrorStreamCaptureIsolation);
  EXPECT_EQ(end(origin), cudaErrorStreamCaptureInvalidated);
}

TEST_F(Graphs, CapturedEventsCannotBeAsked) {
  cudaStream_t stream = new_stream();
  Event event;
  begin(stream, cudaStreamCaptureModeRelaxed);
  event.record(stream);
  EXPECT_EQ(cleared(cudaEventQuery(event)), cudaErrorCapturedEvent);
  EXPECT_EQ(end(stream), cudaErrorStreamCaptureInvalidated);
}

TEST_F(Graphs, EndInTheWrongPlace) {
  cudaStream_t stream = new_stream(), other = new_stream();
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cleared(cudaStreamEndCapture(other, &graph)), cudaErrorIllegalState);
  begin(stream);
  std::thread([&] {
    EXPECT_EQ(cleared(cudaStreamEndCapture(stream, &graph)), cudaErrorStreamCaptureWrongThread);
  }).join();
  EXPECT_CUDA(end(stream));
}

}  // namespace
}  // namespace gpubusy::sim::test
