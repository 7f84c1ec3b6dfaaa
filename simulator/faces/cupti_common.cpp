// SPDX-License-Identifier: Apache-2.0
#include "simulator/faces/cupti_common.hpp"

#include <string_view>

#include "simulator/core/api_call.hpp"
#include "simulator/core/kernels.hpp"

namespace gpubusy::sim::cupti {

void Common::note_call(const CallEvent& call) {
  if (call.nested) return;
  const std::string_view name = call.site->name;
  const Launch launch{call.correlation, name.find("Async") != name.npos, call.start_ns};
  std::lock_guard lock(lock_);
  launches_[call.correlation % launches_.size()] = launch;
}

Common::WorkNotes Common::note_work(const Operation& operation) {
  std::lock_guard lock(lock_);
  WorkNotes notes{next_number_++, nullptr, {}};
  if (operation.kernel != nullptr) {
    const char*& name = names_[operation.kernel];
    // The library that brought the kernel may be unloaded; names that a client has got stay.
    if (name == nullptr) name = lasting_names_.insert(operation.kernel->name).first->c_str();
    notes.name = name;
  }
  const Launch& launch = launches_[operation.correlation % launches_.size()];
  if (launch.correlation == operation.correlation) notes.launch = launch;
  return notes;
}

Common::EventIds& Common::find(const Event& event) {
  return events_.try_emplace(&event, EventIds{static_cast<std::uint32_t>(events_.size() + 1), 0})
      .first->second;
}

Common::EventIds Common::note_recorded(const Event& event) {
  std::lock_guard lock(lock_);
  EventIds& ids = find(event);
  ids.sync_id = next_sync_id_++;
  return ids;
}

Common::EventIds Common::ids_of(const Event& event) {
  std::lock_guard lock(lock_);
  return find(event);
}

}  // namespace gpubusy::sim::cupti
