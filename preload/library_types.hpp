// SPDX-License-Identifier: Apache-2.0
//
// Types of libraries' parameters that are passed by value.
#pragma once

namespace gpubusy::preload {

struct NcclUniqueId {  // ncclUniqueId
  char bytes[128];
};

}  // namespace gpubusy::preload
