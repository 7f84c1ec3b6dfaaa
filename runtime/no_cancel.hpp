// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>

namespace gpubusy::runtime {

// Round our slow work: open, read, pwrite and the like are cancellation points, and a thread of the
// program that is cancelled in one of them would take our locks with it. A pair costs some 50 ns,
// so calls that only fill a record do without; never round the real call.
class NoCancel {
 public:
  NoCancel() noexcept { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~NoCancel() { pthread_setcancelstate(before_, nullptr); }
  NoCancel(const NoCancel&) = delete;
  NoCancel& operator=(const NoCancel&) = delete;

 private:
  int before_ = PTHREAD_CANCEL_ENABLE;
};

}  // namespace gpubusy::runtime
