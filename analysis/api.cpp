// SPDX-License-Identifier: Apache-2.0
#include "analysis/api.hpp"

#include "analysis/trace_import/kineto.hpp"

namespace gpubusy::analysis {

tl::expected<recording::Session, recording::Error> load_session(const std::string& path,
                                                                std::uint64_t run) {
  if (!is_trace_name(path)) return recording::read_session(path, run);
  auto imported = import_trace(path);
  if (!imported) return tl::unexpected(imported.error());
  recording::Session session;
  session.path = path;
  session.processes.push_back(std::move(*imported));
  return session;
}

}  // namespace gpubusy::analysis
