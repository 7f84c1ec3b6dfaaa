// SPDX-License-Identifier: Apache-2.0
//
// An NCCL of a few functions. As the real one, it marks its calls by NVTX itself.
#include <cstddef>

#ifdef HAS_NVTX
#include <nvtx3/nvToolsExt.h>
namespace {
nvtxDomainHandle_t domain() {
  static const nvtxDomainHandle_t made = nvtxDomainCreateA("NCCL");
  return made;
}
void push(const char* name) {
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
  attributes.message.ascii = name;
  nvtxDomainRangePushEx(domain(), &attributes);
}
void pop() { nvtxDomainRangePop(domain()); }
}  // namespace
#else
namespace {
void push(const char*) {}
void pop() {}
}  // namespace
#endif

struct Id {
  char bytes[128];
};

extern "C" {
int ncclAllReduce(void*, void*, std::size_t, int, int, void*, void*) {
  push("ncclAllReduce");
  pop();
  return 0;
}
int ncclSend(void*, std::size_t, int, int, void*, void*) { return 0; }
int ncclGroupStart() { return 0; }
int ncclGroupEnd() { return 0; }
// Says what came through of the parameter that is passed by value.
int ncclCommInitRank(void*, int, Id id, int rank) { return id.bytes[127] + rank; }
}
