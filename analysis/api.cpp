// SPDX-License-Identifier: Apache-2.0
#include "analysis/api.hpp"

namespace gpubusy::analysis {

tl::expected<recording::Session, recording::Error> load_session(const std::string& path,
                                                                std::uint64_t run) {
  return recording::read_session(path, run);
}

}  // namespace gpubusy::analysis
