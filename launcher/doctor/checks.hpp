// SPDX-License-Identifier: Apache-2.0
//
// The functions of the table in check.cpp; what each looks at is said there.
#pragma once

#include "launcher/doctor/check.hpp"

namespace gpubusy::launcher::doctor {

// checks_library.cpp
std::optional<Outcome> check_library(const Machine& m);
std::optional<Outcome> check_loading(const Machine& m);
std::optional<Outcome> check_exports(const Machine& m);
std::optional<Outcome> check_glibc(const Machine& m);
std::optional<Outcome> check_settings(const Machine& m);

// checks_command.cpp
std::optional<Outcome> check_command(const Machine& m);
std::optional<Outcome> check_place(const Machine& m);
std::optional<Outcome> check_python(const Machine& m);
std::optional<Outcome> check_torch(const Machine& m);

// checks_gpu.cpp
std::optional<Outcome> check_device(const Machine& m);
std::optional<Outcome> check_driver(const Machine& m);
std::optional<Outcome> check_driver_library(const Machine& m);
std::optional<Outcome> check_device_files(const Machine& m);
std::optional<Outcome> check_visible_devices(const Machine& m);
std::optional<Outcome> check_driver_for_torch(const Machine& m);
std::optional<Outcome> check_cupti(const Machine& m);
std::optional<Outcome> check_profiling_rights(const Machine& m);

// checks_environment.cpp
std::optional<Outcome> check_other_tools(const Machine& m);
std::optional<Outcome> check_other_preloads(const Machine& m);
std::optional<Outcome> check_loader_variables(const Machine& m);
std::optional<Outcome> check_slow_variables(const Machine& m);
std::optional<Outcome> check_container(const Machine& m);
std::optional<Outcome> check_scheduler(const Machine& m);
std::optional<Outcome> check_security(const Machine& m);

// checks_system.cpp
std::optional<Outcome> check_output(const Machine& m);
std::optional<Outcome> check_limits(const Machine& m);
std::optional<Outcome> check_memory(const Machine& m);
std::optional<Outcome> check_processors(const Machine& m);
std::optional<Outcome> check_shared_memory(const Machine& m);
std::optional<Outcome> check_own_memory(const Machine& m);
std::optional<Outcome> check_proc(const Machine& m);
std::optional<Outcome> check_clock(const Machine& m);
std::optional<Outcome> check_host_name(const Machine& m);

// Bytes for people: "512 MiB".
std::string size_text(std::uint64_t bytes);
// Runs on the simulated device of gpubusy-sim?
bool is_simulated(const Machine& m);

}  // namespace gpubusy::launcher::doctor
