# SPDX-License-Identifier: Apache-2.0
# Rules for everything that is linked into the injected library.
function(gpubusy_in_target target)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_options(${target} PRIVATE
    # The library must not see what the program defines, nor the other way round.
    -fvisibility=hidden -fvisibility-inlines-hidden
    # The default model calls __tls_get_addr, which may allocate.
    -ftls-model=initial-exec
    # Unwind tables, so that the program's exceptions pass; no landing pads, which would need the
    # C++ runtime (preload/unwind.hpp).
    -fno-rtti -fno-exceptions -fno-threadsafe-statics -fasynchronous-unwind-tables)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
endfunction()
