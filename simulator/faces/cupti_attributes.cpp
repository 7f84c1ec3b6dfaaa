// SPDX-License-Identifier: Apache-2.0
#include "simulator/faces/cupti_attributes.hpp"

#include <cstring>

namespace gpubusy::sim::cupti {

Attributes::Kept* Attributes::find(int attribute) {
  if (attribute < 0 || attribute >= v2::kAttributes || kept_[attribute].size == 0) return nullptr;
  return &kept_[attribute];
}

CUptiResult Attributes::set(int attribute, std::size_t* size, const void* value) {
  Kept* const kept = find(attribute);
  if (size == nullptr || value == nullptr || kept == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  std::lock_guard lock(lock_);
  if (*size < kept->size) return CUPTI_ERROR_PARAMETER_SIZE_NOT_SUFFICIENT;
  kept->value = 0;
  std::memcpy(&kept->value, value, kept->size);
  return CUPTI_SUCCESS;
}

CUptiResult Attributes::get(int attribute, std::size_t* size, void* value) {
  const Kept* const kept = find(attribute);
  if (size == nullptr || value == nullptr || kept == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  std::lock_guard lock(lock_);
  if (*size < kept->size) return CUPTI_ERROR_PARAMETER_SIZE_NOT_SUFFICIENT;
  std::memcpy(value, &kept->value, kept->size);
  *size = kept->size;
  return CUPTI_SUCCESS;
}

Attributes& common_attributes() noexcept {
  static Attributes attributes;
  return attributes;
}

}  // namespace gpubusy::sim::cupti
