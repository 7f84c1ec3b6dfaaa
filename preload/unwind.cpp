// SPDX-License-Identifier: Apache-2.0
#include "preload/unwind.hpp"

#include <unwind.h>

#include "runtime/thread_state.hpp"

extern "C" [[gnu::used, gnu::visibility("hidden")]] _Unwind_Reason_Code gpubusy_unwind_personality(
    int, _Unwind_Action actions, _Unwind_Exception_Class, _Unwind_Exception*, _Unwind_Context*) {
  if ((actions & _UA_CLEANUP_PHASE) != 0) gpubusy::runtime::t_local.busy = 0;
  return _URC_CONTINUE_UNWIND;
}
