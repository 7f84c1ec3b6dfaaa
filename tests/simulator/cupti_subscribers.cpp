// SPDX-License-Identifier: Apache-2.0
//
// The callback API, and who may subscribe.
#include <dlfcn.h>

#include "cupti_client.hpp"

GPUBUSY_FAKE_KERNEL(sim_100us);

namespace gpubusy::sim::test {
namespace {

using CuptiSubscribers = CuptiTest;

struct Call {
  CUpti_CallbackDomain domain;
  CUpti_CallbackId id;
  CUpti_ApiCallbackSite site;
  std::string function;
  std::uint32_t correlation;
  CUcontext context;
  int result;
  std::uint64_t from_enter;
};
struct Resource {
  CUpti_CallbackId id;
  CUstream stream;
};
std::vector<Call> g_calls;
std::vector<Resource> g_resources;
CUpti_SubscriberHandle g_subscriber = nullptr;
bool g_calls_cuda = false, g_leaves = false;

void CUPTIAPI on_callback(void* user_data, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                          const void* data) {
  EXPECT_EQ(user_data, &g_calls);
  if (domain == CUPTI_CB_DOMAIN_RESOURCE) {
    const auto* resource = static_cast<const CUpti_ResourceData*>(data);
    g_resources.push_back({id, resource->resourceHandle.stream});
    return;
  }
  if (domain != CUPTI_CB_DOMAIN_RUNTIME_API && domain != CUPTI_CB_DOMAIN_DRIVER_API) return;
  const auto* call = static_cast<const CUpti_CallbackData*>(data);
  const bool enters = call->callbackSite == CUPTI_API_ENTER;
  if (enters) *call->correlationData = 1000 + g_calls.size();
  g_calls.push_back({domain, id, call->callbackSite, call->functionName, call->correlationId,
                     call->context, enters ? -1 : *static_cast<int*>(call->functionReturnValue),
                     *call->correlationData});
  int device = 0;
  if (g_calls_cuda) cudaGetDevice(&device);
  if (g_leaves && !enters) {
    EXPECT_CUPTI(cuptiUnsubscribe(g_subscriber));
  }
}

void subscribe() {
  g_calls.clear();
  g_resources.clear();
  g_calls_cuda = g_leaves = false;
  ASSERT_CUPTI(cuptiSubscribe(&g_subscriber, on_callback, &g_calls));
}

TEST_F(CuptiSubscribers, EnterAndExitOfBothLayers) {
  subscribe();
  ASSERT_CUPTI(cuptiEnableCallback(1, g_subscriber, CUPTI_CB_DOMAIN_RUNTIME_API,
                                   CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000));
  ASSERT_CUPTI(cuptiEnableCallback(1, g_subscriber, CUPTI_CB_DOMAIN_DRIVER_API,
                                   CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel));
  Client::enable({CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL});
  launch(sim_100us, nullptr);
  Client::synchronise_and_flush();

  CUcontext context = nullptr;
  ASSERT_CUDA(cuCtxGetCurrent(&context));
  ASSERT_EQ(g_calls.size(), 4u);
  ASSERT_EQ(Client::kernels().size(), 1u);
  const char* const functions[] = {"cudaLaunchKernel", "cuLaunchKernel", "cuLaunchKernel",
                                   "cudaLaunchKernel"};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(g_calls[i].function, functions[i]);
    EXPECT_EQ(g_calls[i].site, i < 2 ? CUPTI_API_ENTER : CUPTI_API_EXIT);
    EXPECT_EQ(g_calls[i].correlation, Client::kernels()[0].correlationId);
    EXPECT_EQ(g_calls[i].context, context);
  }
  EXPECT_EQ(g_calls[0].from_enter, 1000u);
  EXPECT_EQ(g_calls[3].from_enter, 1000u);
  EXPECT_EQ(g_calls[1].from_enter, g_calls[2].from_enter);
  EXPECT_EQ(g_calls[3].result, 0);
}

TEST_F(CuptiSubscribers, WholeDomainsAndErrors) {
  subscribe();
  ASSERT_CUPTI(cuptiEnableDomain(1, g_subscriber, CUPTI_CB_DOMAIN_RUNTIME_API));
  EXPECT_EQ(cudaSetDevice(77), cudaErrorInvalidDevice);
  ASSERT_EQ(g_calls.size(), 2u);
  EXPECT_EQ(g_calls[1].function, "cudaSetDevice");
  EXPECT_EQ(g_calls[1].result, cudaErrorInvalidDevice);
  std::uint32_t enabled = 0;
  ASSERT_CUPTI(cuptiGetCallbackState(&enabled, g_subscriber, CUPTI_CB_DOMAIN_RUNTIME_API, 1));
  EXPECT_EQ(enabled, 1u);
  ASSERT_CUPTI(cuptiEnableDomain(0, g_subscriber, CUPTI_CB_DOMAIN_RUNTIME_API));
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
  EXPECT_EQ(g_calls.size(), 2u);
  EXPECT_EQ(cuptiEnableCallback(1, g_subscriber, CUPTI_CB_DOMAIN_RUNTIME_API, 100'000),
            CUPTI_ERROR_INVALID_PARAMETER);
  EXPECT_EQ(cuptiEnableDomain(1, g_subscriber, CUPTI_CB_DOMAIN_INVALID),
            CUPTI_ERROR_INVALID_PARAMETER);
  EXPECT_EQ(cuptiEnableDomain(1, nullptr, CUPTI_CB_DOMAIN_RUNTIME_API),
            CUPTI_ERROR_INVALID_PARAMETER);
}

TEST_F(CuptiSubscribers, ResourcesComeAndGo) {
  subscribe();
  ASSERT_CUPTI(cuptiEnableDomain(1, g_subscriber, CUPTI_CB_DOMAIN_RESOURCE));
  cudaStream_t stream = new_stream();
  ASSERT_CUDA(cudaStreamDestroy(stream));
  ASSERT_EQ(g_resources.size(), 2u);
  EXPECT_EQ(g_resources[0].id, CUPTI_CBID_RESOURCE_STREAM_CREATED);
  EXPECT_EQ(g_resources[0].stream, stream);
  EXPECT_EQ(g_resources[1].id, CUPTI_CBID_RESOURCE_STREAM_DESTROY_STARTING);
}

TEST_F(CuptiSubscribers, CallsFromACallbackAreNotTold) {
  subscribe();
  g_calls_cuda = true;
  ASSERT_CUPTI(cuptiEnableDomain(1, g_subscriber, CUPTI_CB_DOMAIN_RUNTIME_API));
  Client::enable({CUPTI_ACTIVITY_KIND_RUNTIME});
  ASSERT_CUDA(cudaDeviceSynchronize());
  ASSERT_CUPTI(cuptiActivityFlushAll(0));
  EXPECT_EQ(g_calls.size(), 2u);
  ASSERT_EQ(Client::runtime_calls().size(), 1u);
  EXPECT_EQ(name_of(Client::runtime_calls()[0]), "cudaDeviceSynchronize_v3020");
}

TEST_F(CuptiSubscribers, LeavesFromACallback) {
  subscribe();
  g_leaves = true;
  ASSERT_CUPTI(cuptiEnableDomain(1, g_subscriber, CUPTI_CB_DOMAIN_RUNTIME_API));
  ASSERT_CUDA(cudaDeviceSynchronize());
  ASSERT_CUDA(cudaDeviceSynchronize());
  EXPECT_EQ(g_calls.size(), 2u);
}

TEST_F(CuptiSubscribers, OnlyOne) {
  CUpti_SubscriberHandle first = nullptr, second = nullptr;
  char old_name[CUPTI_OLD_SUBSCRIBER_NAME_MIN_LEN] = {};
  CUpti_SubscriberParams params{};
  EXPECT_EQ(cuptiSubscribe_v2(&first, on_callback, &g_calls, &params),
            CUPTI_ERROR_INVALID_PARAMETER);  // no size
  params.structSize = CUpti_SubscriberParams_STRUCT_SIZE;
  params.subscriberName = "the first";
  params.oldSubscriberName = old_name;
  params.oldSubscriberSize = sizeof old_name;
  ASSERT_CUPTI(cuptiSubscribe_v2(&first, on_callback, &g_calls, &params));
  EXPECT_STREQ(old_name, "");
  EXPECT_EQ(cuptiSubscribe(&second, on_callback, &g_calls),
            CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED);
  EXPECT_EQ(cuptiSubscribe_v2(&second, on_callback, &g_calls, &params),
            CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED);
  EXPECT_STREQ(old_name, "CUPTI for the first");
  ASSERT_CUPTI(cuptiUnsubscribe(first));
  EXPECT_EQ(cuptiUnsubscribe(first), CUPTI_ERROR_INVALID_PARAMETER);
  ASSERT_CUPTI(cuptiSubscribe(&second, on_callback, &g_calls));
  ASSERT_CUPTI(cuptiUnsubscribe(second));
}

// Records need no subscription.
TEST_F(CuptiSubscribers, RecordsWithoutASubscription) {
  CUpti_SubscriberHandle other = nullptr;
  ASSERT_CUPTI(cuptiSubscribe(&other, on_callback, &g_calls));
  Client::enable({CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL});
  launch(sim_100us, nullptr);
  Client::synchronise_and_flush();
  EXPECT_EQ(Client::kernels().size(), 1u);
}

TEST_F(CuptiSubscribers, NamesAndVersions) {
  const char* text = nullptr;
  EXPECT_CUPTI(cuptiGetResultString(CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED, &text));
  EXPECT_STREQ(text, "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED");
  EXPECT_EQ(cuptiGetResultString(static_cast<CUptiResult>(36), &text),
            CUPTI_ERROR_INVALID_PARAMETER);
  EXPECT_CUPTI(cuptiGetCallbackName(CUPTI_CB_DOMAIN_RUNTIME_API, 211, &text));
  EXPECT_STREQ(text, "cudaLaunchKernel_v7000");
  EXPECT_CUPTI(cuptiGetCallbackName(CUPTI_CB_DOMAIN_DRIVER_API, 307, &text));
  EXPECT_STREQ(text, "cuLaunchKernel");
  EXPECT_CUPTI(cuptiGetCallbackName(CUPTI_CB_DOMAIN_DRIVER_API, 0, &text));
  EXPECT_STREQ(text, "INVALID");
  EXPECT_EQ(cuptiGetCallbackName(CUPTI_CB_DOMAIN_RESOURCE, 1, &text),
            CUPTI_ERROR_INVALID_PARAMETER);
  EXPECT_EQ(text, nullptr);
  std::uint32_t version = 0;
  EXPECT_CUPTI(cuptiGetVersion(&version));
  EXPECT_EQ(version, static_cast<std::uint32_t>(CUPTI_API_VERSION));
}

// As a program does that was not linked to it.
TEST_F(CuptiSubscribers, IsFoundByName) {
  void* library = dlopen("libcupti.so.13", RTLD_NOW);
  ASSERT_NE(library, nullptr) << dlerror();
  auto* get_version =
      reinterpret_cast<CUptiResult (*)(std::uint32_t*)>(dlsym(library, "cuptiGetVersion"));
  ASSERT_NE(get_version, nullptr);
  std::uint32_t version = 0;
  EXPECT_CUPTI(get_version(&version));
  EXPECT_EQ(version, static_cast<std::uint32_t>(CUPTI_API_VERSION));
  // What is not simulated says so.
  EXPECT_EQ(cuptiActivityEnableHWTrace(1), CUPTI_ERROR_NOT_SUPPORTED);
  dlclose(library);
}

}  // namespace
}  // namespace gpubusy::sim::test
