// SPDX-License-Identifier: Apache-2.0
//
// The environment of the profiled program: the launcher's own, plus what the library needs.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace gpubusy::launcher {

// LD_PRELOAD's new value. Ours comes first, the user's entries follow in their order; an
// AddressSanitizer runtime among them stays in front of all, since it refuses any other place.
std::string merge_preload(const std::string& ours, const char* users);

// True: ld.so can read the name in LD_PRELOAD (no space, no colon, no $ expansion).
bool is_preload_safe(const std::string& path);

// `base` (environ's form) with `changes` set; duplicates of a changed name are dropped.
std::vector<std::string> change_environment(
    const char* const* base, const std::vector<std::pair<std::string, std::string>>& changes);

// ASAN_OPTIONS that let a program with a shared AddressSanitizer start behind a preload.
std::string merge_asan_options(const char* users);

// libgpubusy.so as an absolute path, found from the launcher's own place; empty: not there.
std::string find_library();

}  // namespace gpubusy::launcher
