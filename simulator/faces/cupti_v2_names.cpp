// SPDX-License-Identifier: Apache-2.0
//
// The libcupti.so.13 that is preloaded where cupti_api says 13.3 or more. Its names are no names of
// the simulator's library, so that an older CUPTI lacks them, for dlsym too.
#include "simulator/faces/cupti_v2.hpp"

#define FORWARD(name, parameters, arguments)                                      \
  extern "C" CUptiResult gpubusy_sim_##name parameters;                           \
  extern "C" __attribute__((visibility("default"))) CUptiResult name parameters { \
    return gpubusy_sim_##name arguments;                                          \
  }
GPUBUSY_SIM_CUPTI_V2_FUNCTIONS(FORWARD)
