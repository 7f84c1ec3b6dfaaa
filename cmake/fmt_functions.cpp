// SPDX-License-Identifier: Apache-2.0
//
// fmt's functions that are no templates, for programs that must not need libfmt.so: with its
// header-only form all that vformat() may need is defined here, weakly, by the names that fmt's
// library has.
#define FMT_HEADER_ONLY 1
#include <fmt/format.h>

namespace gpubusy {

extern std::string (*const kVformat)(fmt::string_view, fmt::format_args);
std::string (*const kVformat)(fmt::string_view, fmt::format_args) = &fmt::vformat;

}  // namespace gpubusy
