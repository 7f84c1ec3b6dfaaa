// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <errno.h>

namespace gpubusy::runtime {

// The program must find errno as the real call left it.
class KeepErrno {
 public:
  KeepErrno() noexcept : saved_(errno) {}
  ~KeepErrno() { errno = saved_; }
  KeepErrno(const KeepErrno&) = delete;
  KeepErrno& operator=(const KeepErrno&) = delete;

 private:
  const int saved_;
};

}  // namespace gpubusy::runtime
