// SPDX-License-Identifier: Apache-2.0
#include "simulator/faces/cupti_names.hpp"

#include <unordered_map>

namespace gpubusy::sim::cupti {
namespace {

struct Named {
  const char* name;
  std::uint32_t value;
};

#define RUNTIME_CALLBACK(name, value)
#define DRIVER_CALLBACK(name, value)
#define CUPTI_RESULT(name, value)

constexpr Named kRuntime[] = {
#undef RUNTIME_CALLBACK
#define RUNTIME_CALLBACK(name, value) {name, value},
#include "cupti_names.inc"
#undef RUNTIME_CALLBACK
#define RUNTIME_CALLBACK(name, value)
};
constexpr Named kDriver[] = {
#undef DRIVER_CALLBACK
#define DRIVER_CALLBACK(name, value) {name, value},
#include "cupti_names.inc"
#undef DRIVER_CALLBACK
#define DRIVER_CALLBACK(name, value)
};
constexpr Named kResults[] = {
#undef CUPTI_RESULT
#define CUPTI_RESULT(name, value) {name, value},
#include "cupti_names.inc"
};

// "cudaMalloc_v3020" without its version, which is no part of the symbol.
std::string_view without_version(std::string_view name) {
  const auto mark = name.rfind("_v");
  if (mark == name.npos || mark + 2 == name.size()) return name;
  return name.find_first_not_of("0123456789", mark + 2) == name.npos ? name.substr(0, mark) : name;
}

struct Tables {
  std::unordered_map<std::string_view, std::uint32_t> runtime_ids, driver_ids;
  const char* runtime_names[kMaxCallbackId + 1] = {};
  const char* driver_names[kMaxCallbackId + 1] = {};
};

const Tables& tables() {
  static const Tables* made = [] {
    auto* t = new Tables;
    for (const Named& entry : kRuntime) {
      if (entry.value > kMaxCallbackId) continue;
      t->runtime_names[entry.value] = entry.name;
      // Newer versions have greater numbers.
      std::uint32_t& id = t->runtime_ids[without_version(entry.name)];
      if (entry.value > id) id = entry.value;
    }
    for (const Named& entry : kDriver) {
      if (entry.value > kMaxCallbackId) continue;
      t->driver_names[entry.value] = entry.name;
      t->driver_ids[entry.name] = entry.value;
    }
    return t;
  }();
  return *made;
}

}  // namespace

const char* callback_name(bool runtime, std::uint32_t id) noexcept {
  if (id > kMaxCallbackId) return nullptr;
  return runtime ? tables().runtime_names[id] : tables().driver_names[id];
}

std::uint32_t callback_id(bool runtime, std::string_view symbol) noexcept {
  const auto& ids = runtime ? tables().runtime_ids : tables().driver_ids;
  const auto found = ids.find(symbol);
  return found == ids.end() ? 0 : found->second;
}

const char* result_name(int result) noexcept {
  for (const Named& entry : kResults) {
    if (entry.value == static_cast<std::uint32_t>(result)) return entry.name;
  }
  return nullptr;
}

}  // namespace gpubusy::sim::cupti
