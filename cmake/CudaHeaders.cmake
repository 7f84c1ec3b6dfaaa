# SPDX-License-Identifier: Apache-2.0
#
# Where CUDA's and cuDNN's headers are: given, or of a Python environment's wheels, or of a toolkit.
# Only headers are used: nothing is linked with CUDA. Sets GPUBUSY_CUDA_INCLUDE_DIRS,
# GPUBUSY_CUDA_HEADERS_FOUND and the INTERFACE target gpubusy_cuda_headers.
if(NOT GPUBUSY_CUDA_INCLUDE_DIRS)
  set(_patterns)
  foreach(_venv IN ITEMS "$ENV{GPUBUSY_VENV}" "${PROJECT_SOURCE_DIR}/.cache/venv"
                         "$ENV{VIRTUAL_ENV}")
    if(_venv)
      list(APPEND _patterns "${_venv}/lib/python3*/site-packages/nvidia/cu*/include"
                            "${_venv}/lib/python3*/site-packages/nvidia/*/include")
    endif()
  endforeach()
  file(GLOB _candidates ${_patterns})
  list(APPEND _candidates "$ENV{CUDA_HOME}/include" /usr/local/cuda/include)
  set(_found)
  foreach(_header IN ITEMS cuda.h cuda_runtime_api.h cublas_v2.h cudnn.h cupti.h crt/host_defines.h
                           nv/target cudaProfiler.h)
    foreach(_dir IN LISTS _candidates)
      if(EXISTS "${_dir}/${_header}")
        list(APPEND _found "${_dir}")
        break()
      endif()
    endforeach()
  endforeach()
  list(REMOVE_DUPLICATES _found)
  set(GPUBUSY_CUDA_INCLUDE_DIRS "${_found}" CACHE STRING
      "Directories of cuda.h, cuda_runtime_api.h and cudnn.h; empty: look for them" FORCE)
endif()

set(GPUBUSY_CUDA_HEADERS_FOUND FALSE)
foreach(_dir IN LISTS GPUBUSY_CUDA_INCLUDE_DIRS)
  if(EXISTS "${_dir}/cuda_runtime_api.h")
    set(GPUBUSY_CUDA_HEADERS_FOUND TRUE)
  endif()
endforeach()

if(GPUBUSY_CUDA_HEADERS_FOUND)
  message(STATUS "CUDA headers: ${GPUBUSY_CUDA_INCLUDE_DIRS}")
elseif(GPUBUSY_REQUIRE_CUDA_HEADERS)
  message(FATAL_ERROR
    "No CUDA headers (cuda_runtime_api.h). ./dev build fetches them as Python wheels; or set "
    "GPUBUSY_CUDA_INCLUDE_DIRS, e.g. to /usr/local/cuda/include, or GPUBUSY_VENV to a Python "
    "environment that has PyTorch. -DGPUBUSY_REQUIRE_CUDA_HEADERS=OFF builds the parts without.")
endif()

add_library(gpubusy_cuda_headers INTERFACE)
target_include_directories(gpubusy_cuda_headers SYSTEM INTERFACE ${GPUBUSY_CUDA_INCLUDE_DIRS})
