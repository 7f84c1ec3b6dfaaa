// SPDX-License-Identifier: Apache-2.0
//
// Activity records: what is in them, when they come, and how they are connected.
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "cupti_client.hpp"

GPUBUSY_FAKE_KERNEL(sim_100us);
GPUBUSY_FAKE_KERNEL(sim_1ms);
GPUBUSY_FAKE_KERNEL(sim_10ms);

namespace gpubusy::sim::test {
namespace {

using CuptiRecords = CuptiTest;

constexpr std::int64_t kMicrosecond = 1000;

std::int64_t length(std::uint64_t start, std::uint64_t end) {
  return static_cast<std::int64_t>(end - start);
}

TEST_F(CuptiRecords, KernelAndItsLaunch) {
  cudaStream_t stream = new_stream();
  Client::enable({CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_RUNTIME});
  std::uint64_t before = 0, after = 0;
  ASSERT_CUPTI(cuptiGetTimestamp(&before));
  ASSERT_CUDA(cudaLaunchKernel(sim_1ms.stub(), {7, 3, 2}, {32, 2, 1}, nullptr, 1024, stream));
  Client::synchronise_and_flush();
  ASSERT_CUPTI(cuptiGetTimestamp(&after));

  const auto kernels = Client::kernels();
  ASSERT_EQ(kernels.size(), 1u);
  const auto& kernel = kernels[0];
  EXPECT_STREQ(kernel.name, "sim_1ms");
  EXPECT_NEAR(length(kernel.start, kernel.end), 1'000'000, kMicrosecond);
  EXPECT_EQ(kernel.completed, kernel.end);
  EXPECT_EQ(kernel.gridX, 7);
  EXPECT_EQ(kernel.gridY, 3);
  EXPECT_EQ(kernel.gridZ, 2);
  EXPECT_EQ(kernel.blockX, 32);
  EXPECT_EQ(kernel.blockY, 2);
  EXPECT_EQ(kernel.blockZ, 1);
  EXPECT_EQ(kernel.dynamicSharedMemory, 1024);
  EXPECT_EQ(kernel.graphNodeId, 0u);
  EXPECT_EQ(kernel.queued, 0u);

  CUcontext context = nullptr;
  ASSERT_CUDA(cuCtxGetCurrent(&context));
  std::uint32_t stream_id = 0, context_id = 0, device_id = 99;
  ASSERT_CUPTI(cuptiGetStreamIdEx(context, stream, 0, &stream_id));
  ASSERT_CUPTI(cuptiGetContextId(context, &context_id));
  ASSERT_CUPTI(cuptiGetDeviceId(nullptr, &device_id));
  EXPECT_EQ(kernel.streamId, stream_id);
  EXPECT_EQ(kernel.contextId, context_id);
  EXPECT_EQ(kernel.deviceId, device_id);

  const auto calls = by_correlation(Client::runtime_calls());
  ASSERT_EQ(calls.count(kernel.correlationId), 1u);
  const auto& call = calls.at(kernel.correlationId);
  EXPECT_EQ(name_of(call), "cudaLaunchKernel_v7000");
  EXPECT_EQ(call.processId, static_cast<std::uint32_t>(getpid()));
  EXPECT_EQ(call.threadId, static_cast<std::uint32_t>(pthread_self()));
  EXPECT_EQ(call.returnValue, 0u);
  EXPECT_LE(before, call.start);
  EXPECT_LT(call.start, call.end);
  EXPECT_LT(call.start, kernel.start);
  EXPECT_LT(kernel.end, after);
  cudaStreamDestroy(stream);
}

// As launched by what nvcc 13 generates.
TEST_F(CuptiRecords, LaunchByTheCompilersCode) {
  Client::enable({CUPTI_ACTIVITY_KIND_RUNTIME});
  cudaKernel_t kernel = nullptr;
  ASSERT_CUDA(__cudaGetKernel(&kernel, sim_100us.stub()));
  ASSERT_CUDA(__cudaLaunchKernel(kernel, kSmallGrid, kBlock, nullptr, 0, nullptr));
  Client::synchronise_and_flush();
  const auto calls = Client::runtime_calls();
  ASSERT_FALSE(calls.empty());
  EXPECT_EQ(name_of(calls[0]), "__cudaLaunchKernel_v13000");
}

TEST_F(CuptiRecords, NothingComesBeforeItIsOver) {
  Client::enable({CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL});
  launch(sim_10ms, nullptr);
  ASSERT_CUPTI(cuptiActivityFlushAll(0));
  EXPECT_TRUE(Client::kernels().empty());
  Client::synchronise_and_flush();
  EXPECT_EQ(Client::kernels().size(), 1u);
}

TEST_F(CuptiRecords, WhatCountsIsTheLaunch) {
  launch(sim_10ms, nullptr);  // runs, but was launched too early
  Client::enable({CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL});
  launch(sim_1ms, nullptr);
  EXPECT_CUPTI(cuptiActivityDisable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL));
  launch(sim_100us, nullptr);
  Client::synchronise_and_flush();
  const auto kernels = Client::kernels();
  ASSERT_EQ(kernels.size(), 1u);
  EXPECT_STREQ(kernels[0].name, "sim_1ms");
}

TEST_F(CuptiRecords, SerialisedKernelsAreOfTheirOwnKind) {
  Client::enable({CUPTI_ACTIVITY_KIND_KERNEL});
  launch(sim_100us, nullptr);
  Client::synchronise_and_flush();
  EXPECT_EQ(Client::kernels().size(), 0u);
  EXPECT_EQ(Client::records<CUpti_ActivityKernel10>(CUPTI_ACTIVITY_KIND_KERNEL).size(), 1u);
}

// A large copy's times are known when this host has made it; its record was asked for when it was
// submitted, and comes though nothing is enabled any more, as a kernel's that still runs.
TEST_F(CuptiRecords, ACopyThatRunsWhileItsKindIsDisabledIsStillRecorded) {
  constexpr std::size_t kBytes = 256 << 20;
  void *pinned = nullptr, *device = nullptr;
  ASSERT_CUDA(cudaMallocHost(&pinned, kBytes));
  ASSERT_CUDA(cudaMalloc(&device, kBytes));
  Client::enable({CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL});
  ASSERT_CUDA(cudaMemcpyAsync(device, pinned, kBytes, cudaMemcpyHostToDevice, nullptr));
  launch(sim_100us, nullptr);
  ASSERT_CUPTI(cuptiActivityDisable(CUPTI_ACTIVITY_KIND_MEMCPY));
  ASSERT_CUPTI(cuptiActivityDisable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL));
  launch(sim_100us, nullptr);  // of nobody's
  Client::synchronise_and_flush();
  const auto copies = Client::copies();
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0].bytes, kBytes);
  EXPECT_LT(copies[0].start, copies[0].end);
  ASSERT_EQ(Client::kernels().size(), 1u);
  EXPECT_GE(Client::kernels()[0].start, copies[0].end);
  ASSERT_CUDA(cudaFreeHost(pinned));
  ASSERT_CUDA(cudaFree(device));
}

TEST_F(CuptiRecords, CopiesAndFills) {
  constexpr std::size_t kBytes = 1 << 20;
  void *pinned = nullptr, *device = nullptr, *other = nullptr;
  std::vector<char> pageable(kBytes);
  ASSERT_CUDA(cudaMallocHost(&pinned, kBytes));
  ASSERT_CUDA(cudaMalloc(&device, kBytes));
  ASSERT_CUDA(cudaMalloc(&other, kBytes));
  Client::enable({CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET});
  ASSERT_CUDA(cudaMemcpyAsync(device, pinned, kBytes, cudaMemcpyHostToDevice, nullptr));
  ASSERT_CUDA(cudaMemcpyAsync(other, device, kBytes, cudaMemcpyDeviceToDevice, nullptr));
  ASSERT_CUDA(cudaMemcpy(pageable.data(), other, kBytes, cudaMemcpyDeviceToHost));
  ASSERT_CUDA(cudaMemsetAsync(device, 0x5a, kBytes / 2, nullptr));
  Client::synchronise_and_flush();

  const auto copies = Client::copies();
  ASSERT_EQ(copies.size(), 3u);
  EXPECT_EQ(copies[0].copyKind, CUPTI_ACTIVITY_MEMCPY_KIND_HTOD);
  EXPECT_EQ(copies[0].srcKind, CUPTI_ACTIVITY_MEMORY_KIND_PINNED);
  EXPECT_EQ(copies[0].dstKind, CUPTI_ACTIVITY_MEMORY_KIND_DEVICE);
  EXPECT_EQ(copies[0].flags, CUPTI_ACTIVITY_FLAG_MEMCPY_ASYNC);
  EXPECT_EQ(copies[0].streamId, 7u);
  EXPECT_EQ(copies[0].runtimeCorrelationId, copies[0].correlationId);
  EXPECT_EQ(copies[1].copyKind, CUPTI_ACTIVITY_MEMCPY_KIND_DTOD);
  EXPECT_EQ(copies[2].copyKind, CUPTI_ACTIVITY_MEMCPY_KIND_DTOH);
  EXPECT_EQ(copies[2].dstKind, CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE);
  EXPECT_EQ(copies[2].flags, 0);
  for (const auto& copy : copies) {
    EXPECT_EQ(copy.bytes, kBytes);
    EXPECT_LT(copy.start, copy.end);
  }
  const auto fills = Client::records<CUpti_ActivityMemset4>(CUPTI_ACTIVITY_KIND_MEMSET);
  ASSERT_EQ(fills.size(), 1u);
  EXPECT_EQ(fills[0].bytes, kBytes / 2);
  EXPECT_EQ(fills[0].value, 0x5au);
  EXPECT_EQ(fills[0].memoryKind, CUPTI_ACTIVITY_MEMORY_KIND_DEVICE);
  cudaFree(device);
  cudaFree(other);
  cudaFreeHost(pinned);
}

TEST_F(CuptiRecords, CopyBetweenDevices) {
  void *here = nullptr, *there = nullptr;
  ASSERT_CUDA(cudaMalloc(&here, 4096));
  ASSERT_CUDA(cudaSetDevice(1));
  ASSERT_CUDA(cudaMalloc(&there, 4096));
  ASSERT_CUDA(cudaSetDevice(0));
  Client::enable({CUPTI_ACTIVITY_KIND_MEMCPY});
  ASSERT_CUDA(cudaMemcpyPeerAsync(there, 1, here, 0, 4096, nullptr));
  Client::synchronise_and_flush();
  EXPECT_TRUE(Client::copies().empty());
  const auto copies = Client::records<CUpti_ActivityMemcpyPtoP4>(CUPTI_ACTIVITY_KIND_MEMCPY2);
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0].copyKind, CUPTI_ACTIVITY_MEMCPY_KIND_PTOP);
  EXPECT_EQ(copies[0].srcDeviceId, 0u);
  EXPECT_EQ(copies[0].dstDeviceId, 1u);
  EXPECT_EQ(copies[0].bytes, 4096u);
  cudaFree(here);
  cudaFree(there);
}

TEST_F(CuptiRecords, DriverCallsInsideRuntimeCalls) {
  Client::enable({CUPTI_ACTIVITY_KIND_DRIVER, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL});
  launch(sim_100us, nullptr);
  EXPECT_CUPTI(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_RUNTIME));
  launch(sim_100us, nullptr);
  CUcontext context = nullptr;
  ASSERT_CUDA(cuCtxGetCurrent(&context));
  Client::synchronise_and_flush();

  const auto kernels = Client::kernels();
  ASSERT_EQ(kernels.size(), 2u);
  const auto driver = by_correlation(Client::driver_calls());
  const auto runtime = by_correlation(Client::runtime_calls());
  // Only the driver recorded: the launch inside the runtime's, with the id of both.
  ASSERT_EQ(driver.count(kernels[0].correlationId), 1u);
  EXPECT_EQ(name_of(driver.at(kernels[0].correlationId)), "cuLaunchKernel");
  // Both recorded: the runtime call stands for both.
  EXPECT_EQ(driver.count(kernels[1].correlationId), 0u);
  EXPECT_EQ(runtime.count(kernels[1].correlationId), 1u);
  // The program's own driver calls are there all the same.
  EXPECT_TRUE(std::any_of(driver.begin(), driver.end(), [](const auto& entry) {
    return name_of(entry.second) == "cuCtxGetCurrent";
  }));
}

TEST_F(CuptiRecords, SomeFunctionsOnly) {
  int device = 0;
  Client::enable({CUPTI_ACTIVITY_KIND_RUNTIME});
  ASSERT_CUPTI(cuptiActivityEnableRuntimeApi(CUPTI_RUNTIME_TRACE_CBID_cudaGetDevice_v3020, 0));
  ASSERT_CUDA(cudaGetDevice(&device));
  Client::synchronise_and_flush();
  for (const auto& call : Client::runtime_calls()) EXPECT_NE(name_of(call), "cudaGetDevice_v3020");

  EXPECT_CUPTI(cuptiActivityDisable(CUPTI_ACTIVITY_KIND_RUNTIME));
  Client::delivered.clear();
  ASSERT_CUPTI(cuptiActivityEnableRuntimeApi(CUPTI_RUNTIME_TRACE_CBID_cudaGetDevice_v3020, 1));
  ASSERT_CUDA(cudaGetDevice(&device));
  Client::synchronise_and_flush();
  ASSERT_EQ(Client::runtime_calls().size(), 1u);
  EXPECT_EQ(name_of(Client::runtime_calls()[0]), "cudaGetDevice_v3020");
}

TEST_F(CuptiRecords, ExternalCorrelation) {
  Client::enable({CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION, CUPTI_ACTIVITY_KIND_RUNTIME,
                  CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL});
  const auto custom = CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0;
  ASSERT_CUPTI(cuptiActivityPushExternalCorrelationId(custom, 11));
  ASSERT_CUPTI(cuptiActivityPushExternalCorrelationId(custom, 22));
  ASSERT_CUPTI(cuptiActivityPushExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM1, 33));
  launch(sim_100us, nullptr);
  std::uint64_t last = 0;
  ASSERT_CUPTI(cuptiActivityPopExternalCorrelationId(custom, &last));
  EXPECT_EQ(last, 22u);
  ASSERT_CUPTI(
      cuptiActivityPopExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM1, nullptr));
  launch(sim_100us, nullptr);
  ASSERT_CUPTI(cuptiActivityPopExternalCorrelationId(custom, nullptr));
  EXPECT_EQ(cuptiActivityPopExternalCorrelationId(custom, &last), CUPTI_ERROR_QUEUE_EMPTY);
  EXPECT_EQ(cuptiActivityPushExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_INVALID, 1),
            CUPTI_ERROR_INVALID_PARAMETER);
  Client::synchronise_and_flush();

  std::set<std::tuple<std::uint32_t, int, std::uint64_t>> found, expected;
  for (const auto& r : Client::records<CUpti_ActivityExternalCorrelation>(
           CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION)) {
    found.emplace(r.correlationId, r.externalKind, r.externalId);
  }
  const auto kernels = Client::kernels();
  ASSERT_EQ(kernels.size(), 2u);
  expected.emplace(kernels[0].correlationId, custom, 22);
  expected.emplace(kernels[0].correlationId, CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM1, 33);
  expected.emplace(kernels[1].correlationId, custom, 11);
  EXPECT_EQ(found, expected);
}

TEST_F(CuptiRecords, Synchronisation) {
  cudaStream_t stream = new_stream(), other = new_stream();
  Event event;
  Client::enable({CUPTI_ACTIVITY_KIND_SYNCHRONIZATION, CUPTI_ACTIVITY_KIND_CUDA_EVENT});
  launch(sim_1ms, stream);
  event.record(stream);
  ASSERT_CUDA(cudaStreamWaitEvent(other, event, 0));
  ASSERT_CUDA(cudaEventSynchronize(event));
  ASSERT_CUDA(cudaStreamSynchronize(stream));
  Client::synchronise_and_flush();

  std::uint32_t stream_id = 0, other_id = 0;
  ASSERT_CUPTI(cuptiGetStreamId(nullptr, stream, &stream_id));
  ASSERT_CUPTI(cuptiGetStreamId(nullptr, other, &other_id));
  const auto events = Client::records<CUpti_ActivityCudaEvent2>(CUPTI_ACTIVITY_KIND_CUDA_EVENT);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].streamId, stream_id);
  const auto waits =
      Client::records<CUpti_ActivitySynchronization2>(CUPTI_ACTIVITY_KIND_SYNCHRONIZATION);
  ASSERT_EQ(waits.size(), 4u);
  EXPECT_EQ(waits[0].type, CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT);
  EXPECT_EQ(waits[0].streamId, other_id);
  EXPECT_EQ(waits[0].cudaEventId, events[0].eventId);
  EXPECT_EQ(waits[0].cudaEventSyncId, events[0].cudaEventSyncId);
  EXPECT_EQ(waits[1].type, CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_EVENT_SYNCHRONIZE);
  EXPECT_EQ(waits[1].streamId, CUPTI_SYNCHRONIZATION_INVALID_VALUE);
  EXPECT_EQ(waits[1].cudaEventId, events[0].eventId);
  EXPECT_GT(length(waits[1].start, waits[1].end), 500 * kMicrosecond);
  EXPECT_EQ(waits[2].type, CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE);
  EXPECT_EQ(waits[2].streamId, stream_id);
  EXPECT_EQ(waits[3].type, CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE);
  cudaStreamDestroy(stream);
  cudaStreamDestroy(other);
}

TEST_F(CuptiRecords, EveryNodeOfAGraphEveryTime) {
  cudaStream_t stream = new_stream();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  ASSERT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  for (int i = 0; i < 3; ++i) launch(sim_100us, stream);
  ASSERT_CUDA(cudaStreamEndCapture(stream, &graph));
  ASSERT_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  Client::enable({CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_RUNTIME});
  ASSERT_CUDA(cudaGraphLaunch(exec, stream));
  ASSERT_CUDA(cudaGraphLaunch(exec, stream));
  Client::synchronise_and_flush();

  cudaGraphNode_t nodes[3];
  std::size_t count = 3;
  ASSERT_CUDA(cudaGraphGetNodes(graph, nodes, &count));
  std::multiset<std::uint64_t> expected;
  for (cudaGraphNode_t node : nodes) {
    std::uint64_t id = 0;
    ASSERT_CUPTI(cuptiGetGraphNodeId(node, &id));
    expected.insert({id, id});
  }
  std::uint32_t graph_id = 0;
  ASSERT_CUPTI(cuptiGetGraphExecId(exec, &graph_id));
  const auto calls = by_correlation(Client::runtime_calls());
  std::multiset<std::uint64_t> found;
  std::set<std::uint32_t> launches;
  for (const auto& kernel : Client::kernels()) {
    found.insert(kernel.graphNodeId);
    launches.insert(kernel.correlationId);
    EXPECT_EQ(kernel.graphId, graph_id);
    EXPECT_EQ(name_of(calls.at(kernel.correlationId)), "cudaGraphLaunch_v10000");
  }
  EXPECT_EQ(found, expected);
  EXPECT_EQ(launches.size(), 2u);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

TEST_F(CuptiRecords, QueuedAndSubmittedWhereAskedFor) {
  Client::enable({CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_RUNTIME});
  ASSERT_CUPTI(cuptiActivityEnableLatencyTimestamps(1));
  launch(sim_100us, nullptr);
  Client::synchronise_and_flush();
  const auto kernels = Client::kernels();
  ASSERT_EQ(kernels.size(), 1u);
  const auto call = by_correlation(Client::runtime_calls()).at(kernels[0].correlationId);
  EXPECT_EQ(kernels[0].queued, call.start);
  EXPECT_LE(kernels[0].queued, kernels[0].submitted);
  EXPECT_LE(kernels[0].submitted, kernels[0].start);
}

TEST_F(CuptiRecords, ThreadsByTheSystemsNumber) {
  ASSERT_CUPTI(cuptiSetThreadIdType(CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM));
  Client::enable({CUPTI_ACTIVITY_KIND_RUNTIME});
  Client::synchronise_and_flush();
  ASSERT_EQ(Client::runtime_calls().size(), 1u);
  EXPECT_EQ(Client::runtime_calls()[0].threadId, static_cast<std::uint32_t>(gettid()));
}

TEST_F(CuptiRecords, KindsThatAreNotThere) {
  EXPECT_EQ(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_INVALID), CUPTI_ERROR_INVALID_KIND);
  EXPECT_EQ(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_COUNT), CUPTI_ERROR_INVALID_KIND);
  EXPECT_EQ(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER),
            CUPTI_ERROR_NOT_COMPATIBLE);
  EXPECT_EQ(cuptiGetLastError(), CUPTI_ERROR_NOT_COMPATIBLE);
  EXPECT_EQ(cuptiGetLastError(), CUPTI_SUCCESS);
}

// ---- the client's clock: half microseconds since some moment

std::uint64_t CUPTIAPI half_microseconds() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return 123'456 + 2'000'000 * static_cast<std::uint64_t>(t.tv_sec) +
         static_cast<std::uint64_t>(t.tv_nsec) / 500;
}

TEST_F(CuptiRecords, TheClientsClock) {
  ASSERT_CUPTI(cuptiActivityRegisterTimestampCallback(half_microseconds));
  const std::uint64_t before = half_microseconds();
  Client::enable({CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_RUNTIME});
  for (int i = 0; i < 5; ++i) {
    launch(sim_10ms, nullptr);
    launch(sim_100us, nullptr);
    ASSERT_CUDA(cudaDeviceSynchronize());
  }
  Client::synchronise_and_flush();
  const std::uint64_t after = half_microseconds();
  std::uint64_t now = 0;
  ASSERT_CUPTI(cuptiGetTimestamp(&now));
  EXPECT_LE(after, now);

  const auto kernels = Client::kernels();
  ASSERT_EQ(kernels.size(), 10u);
  const auto calls = by_correlation(Client::runtime_calls());
  for (const auto& kernel : kernels) {
    const double expected = std::string(kernel.name) == "sim_10ms" ? 20'000 : 200;
    EXPECT_NEAR(length(kernel.start, kernel.end), expected, 4);
    EXPECT_LE(before, kernel.start);
    EXPECT_LE(calls.at(kernel.correlationId).start, kernel.start + 2);
    EXPECT_LE(kernel.end, after + 2);
  }
}

}  // namespace
}  // namespace gpubusy::sim::test
