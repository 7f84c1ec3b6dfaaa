# SPDX-License-Identifier: Apache-2.0
#
# Clients of the simulated CUPTI.
if(NOT TARGET gpubusy_sim_cupti)
  return()
endif()
add_executable(gpubusy_sim_cupti_tests
  main.cpp cupti_buffers.cpp cupti_parameters.cpp cupti_records.cpp cupti_subscribers.cpp cupti_v2.cpp)
target_link_libraries(gpubusy_sim_cupti_tests PRIVATE
  gpubusy_sim_cupti GTest::gtest Threads::Threads ${CMAKE_DL_LIBS})

function(gpubusy_add_cupti_test name filter)
  set(options "")
  foreach(parameter IN LISTS ARGN)
    list(APPEND options --set ${parameter})
  endforeach()
  add_test(NAME simulator.${name}
    COMMAND gpubusy-sim --devices 2 --set context_ms=1 --set memory_gib=4 --set module_load_us=0
            --set kernel_table=${CMAKE_CURRENT_SOURCE_DIR}/kernel_times.txt ${options}
            $<TARGET_FILE:gpubusy_sim_cupti_tests> --gtest_filter=${filter})
  # They compare host times.
  set_tests_properties(simulator.${name} PROPERTIES RUN_SERIAL ON TIMEOUT 120)
endfunction()
gpubusy_add_cupti_test(cupti CuptiRecords.*:CuptiBuffers.*:CuptiSubscribers.*:CuptiV2Missing.*)
gpubusy_add_cupti_test(cupti_v2 CuptiV2.* cupti_api=13.5)
gpubusy_add_cupti_test(cupti_v2_forbidden CuptiV2Forbidden.* cupti_api=13.5
                       fail=cuptiActivityEnable_v2@1=35)
gpubusy_add_cupti_test(cupti_v2_wrong_clock CuptiV2WrongClock.* cupti_api=13.5
                       cupti_clock_drift_ppm=10000)
# Who uses the functions of before sees the CUPTI of before, but for its version.
gpubusy_add_cupti_test(cupti_v2_old_client
  CuptiRecords.*:CuptiBuffers.*:CuptiSubscribers.*-*.NamesAndVersions:*.IsFoundByName
  cupti_api=13.5)
gpubusy_add_cupti_test(cupti_subscription_forbidden CuptiForbiddenSubscription.*
                       fail=cuptiSubscribe@1=35)
gpubusy_add_cupti_test(cupti_activity_forbidden CuptiForbiddenActivity.*
                       fail=cuptiActivityEnable@1=35)
gpubusy_add_cupti_test(cupti_held CuptiHeldByATool.* "cupti_holder=Some Tool")
gpubusy_add_cupti_test(cupti_many CuptiManySubscribers.* cupti_subscribers=2)
gpubusy_add_cupti_test(cupti_wrong_clock CuptiWrongClock.* cupti_clock_offset_us=-100000
                       cupti_clock_drift_ppm=10000 cupti_clock_jump_us=-50000
                       cupti_clock_jump_s=0.5)
gpubusy_add_cupti_test(cupti_unfinished CuptiUnfinished.* cupti_unfinished=1)
gpubusy_add_cupti_test(cupti_nested_driver CuptiNestedDriver.* cupti_nested_driver=1)
gpubusy_add_cupti_test(cupti_old_launches CuptiOldLaunches.* cupti_old_launches=1)
