# SPDX-License-Identifier: Apache-2.0
#
# gpubusy_fmt: fmt, compiled in. libfmt.so would need the libstdc++ that comes first in LD_LIBRARY_PATH,
# which in a conda environment may be older than the one that gpubusy was built with.
find_package(fmt REQUIRED)
add_library(gpubusy_fmt STATIC ${PROJECT_SOURCE_DIR}/cmake/fmt_functions.cpp)
target_compile_features(gpubusy_fmt PUBLIC cxx_std_20)
# Inline functions are written out besides being inlined.
target_compile_options(gpubusy_fmt PRIVATE
  $<IF:$<CXX_COMPILER_ID:GNU>,-fkeep-inline-functions,-fno-inline>)
target_include_directories(gpubusy_fmt SYSTEM PUBLIC
  $<TARGET_PROPERTY:fmt::fmt,INTERFACE_INCLUDE_DIRECTORIES>)
target_compile_definitions(gpubusy_fmt PUBLIC
  $<TARGET_PROPERTY:fmt::fmt,INTERFACE_COMPILE_DEFINITIONS>)
