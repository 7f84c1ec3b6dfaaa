// SPDX-License-Identifier: Apache-2.0
//
// The address space that the devices and the host share: every allocation is host memory, with a
// record of what it stands for.
//
// Values of kernels are not computed, so a result that a program reads back (loss.item(), the
// GradScaler's found_inf) would be what some earlier tensor left in a reused block: garbage. A copy
// of at most 1 KiB to the host therefore reads zeros, unless these bytes were put there by a copy
// or memset of just that range, or no kernel has been launched since they were.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

#include "simulator/core/operation.hpp"

namespace gpubusy::sim {

struct Allocation {
  std::uintptr_t base = 0;
  std::size_t size = 0;
  MemoryKind kind = MemoryKind::kPageable;
  std::int16_t device = -1;
  unsigned flags = 0;
  bool is_ours = false;    // mapped by us; else registered
  bool is_pooled = false;  // from cuMemAllocAsync
  std::uint64_t id = 0;
  bool is_range = false;  // reserved address space
};

class Memory {
 public:
  // nullptr: out of memory (of the host).
  void* allocate(std::size_t size, MemoryKind kind, int device, unsigned flags, bool pooled);
  bool register_host(void* base, std::size_t size, int device, unsigned flags);
  // The removed allocation; size 0 if there is none of `kind` at `base`.
  Allocation remove(const void* base, MemoryKind kind, bool registered);
  // What `pointer` lies in; kPageable with size 0 if unknown.
  Allocation find(const void* pointer) const;

  // Address space first, memory later (cuMemAddressReserve, cuMemMap). A reserved range counts as
  // one piece of device memory; what is not mapped in it cannot be touched.
  void* reserve_range(std::size_t size, std::size_t alignment);
  bool release_range(const void* base, std::size_t size);
  bool map_in_range(void* address, std::size_t size, int device);
  bool unmap_in_range(void* address, std::size_t size);
  void account(int device, std::ptrdiff_t bytes);  // memory that is not mapped yet, or no more

  // Stream-ordered memory: freed blocks are kept for reuse, as the driver's pool does.
  void* allocate_pooled(std::size_t size, int device);
  bool free_pooled(const void* base);
  std::size_t trim_pool(int device, std::size_t keep_bytes);
  std::size_t pooled_reserved(int device) const;

  std::size_t used(int device) const;

  // See above. `launches`: kernels launched so far.
  void wrote(const void* destination, std::size_t bytes, std::uint64_t launches);
  bool is_stale(const void* source, std::size_t bytes, std::uint64_t launches) const;

 private:
  struct Write {
    std::size_t bytes;
    std::uint64_t launches;
  };
  mutable std::shared_mutex lock_;
  std::map<std::uintptr_t, Allocation> allocations_;
  std::map<std::size_t, std::vector<std::uintptr_t>> pool_[16];
  std::map<std::uintptr_t, Write> writes_;
  std::size_t used_[16] = {};
  std::uint64_t next_id_ = 1;
};

}  // namespace gpubusy::sim
