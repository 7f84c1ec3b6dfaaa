// SPDX-License-Identifier: Apache-2.0
//
// What the simulated devices say about themselves: an H100's figures, with name, memory and number
// of multiprocessors from the parameters.
#pragma once

namespace gpubusy::sim {

inline constexpr int kDriverVersion = 13000;

// `attribute`: CUdevice_attribute, of which cudaDeviceAttr is a copy. False: unknown, `value` is 0.
bool device_attribute(int attribute, int device, int* value) noexcept;
void device_uuid(int device, char* bytes16) noexcept;
int device_pci_bus(int device) noexcept;
int device_at_pci_bus(int bus) noexcept;  // -1: none there

}  // namespace gpubusy::sim
