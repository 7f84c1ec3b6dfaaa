// SPDX-License-Identifier: Apache-2.0
#include "analysis/api.hpp"

namespace gpubusy::analysis {

tl::expected<recording::Session, recording::Error> load_session(const std::string& path) {
  return recording::read_session(path);
}

}  // namespace gpubusy::analysis
