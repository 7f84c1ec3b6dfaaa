// SPDX-License-Identifier: Apache-2.0
//
// Programs put anything into names. Whatever leaves the reader is valid UTF-8. Thread-safe.
#pragma once

#include <string>
#include <string_view>

namespace gpubusy::recording {

// Every byte that is not part of valid UTF-8 becomes U+FFFD (surrogates, overlong forms and values
// beyond U+10FFFF are not valid). Valid text comes back unchanged.
std::string repair_utf8(std::string_view text);

}  // namespace gpubusy::recording
