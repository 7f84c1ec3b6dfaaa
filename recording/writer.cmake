# SPDX-License-Identifier: Apache-2.0
# The writer runs in the target: built before any sanitizer flag of the other rooms.
add_library(gpubusy_recording_writer OBJECT ${PROJECT_SOURCE_DIR}/recording/writer.cpp)
gpubusy_in_target(gpubusy_recording_writer)
