// SPDX-License-Identifier: Apache-2.0
//
// report.html, report.css and report.js as they were when this was built (cmake/EmbedText.cmake).
#pragma once

#include <string_view>

namespace gpubusy::analysis {

extern const std::string_view kReportHtml, kReportCss, kReportJs;
extern const std::string_view kReportCssSha256, kReportJsSha256;  // hex

}  // namespace gpubusy::analysis
