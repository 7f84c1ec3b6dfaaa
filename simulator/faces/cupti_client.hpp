// SPDX-License-Identifier: Apache-2.0
//
// Marks the thread as being inside a callback of the client: what it calls there is not recorded,
// and calls nothing back.
#pragma once

namespace gpubusy::sim::cupti {

inline constinit thread_local int t_in_client = 0;

class InClient {
 public:
  InClient() noexcept { ++t_in_client; }
  ~InClient() { --t_in_client; }
  InClient(const InClient&) = delete;
  InClient& operator=(const InClient&) = delete;
};

}  // namespace gpubusy::sim::cupti
