// SPDX-License-Identifier: Apache-2.0
#include "simulator/core/memory.hpp"

#include <sys/mman.h>

#include <mutex>

namespace gpubusy::sim {
namespace {

constexpr std::size_t kGranularity = 4096;
constexpr std::size_t kPopulateLimit = std::size_t{256} << 20;
// Larger reads are of data, which a program may well compare; small ones are what it branches on.
constexpr std::size_t kSmallBytes = 1024;

std::size_t rounded(std::size_t size) {
  return (size + kGranularity - 1) / kGranularity * kGranularity;
}

}  // namespace

void* Memory::allocate(std::size_t size, MemoryKind kind, int device, unsigned flags, bool pooled) {
  size = rounded(size == 0 ? 1 : size);
  int map_flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  // Pinned memory is resident from the start, so a copy into it takes no page faults.
  if (kind == MemoryKind::kPinned && size <= kPopulateLimit) map_flags |= MAP_POPULATE;
  void* base = mmap(nullptr, size, PROT_READ | PROT_WRITE, map_flags, -1, 0);
  if (base == MAP_FAILED) return nullptr;
  const auto address = reinterpret_cast<std::uintptr_t>(base);
  std::unique_lock lock(lock_);
  allocations_[address] = {address, size, kind,   static_cast<std::int16_t>(device),
                           flags,   true, pooled, next_id_++,
                           false};
  if (kind == MemoryKind::kDevice && !pooled) used_[device] += size;
  return base;
}

bool Memory::register_host(void* base, std::size_t size, int device, unsigned flags) {
  const auto address = reinterpret_cast<std::uintptr_t>(base);
  std::unique_lock lock(lock_);
  auto next = allocations_.lower_bound(address);
  if (next != allocations_.end() && next->first < address + size) return false;
  if (next != allocations_.begin()) {
    const Allocation& before = std::prev(next)->second;
    if (before.base + before.size > address) return false;
  }
  allocations_[address] = {
      address,    size, MemoryKind::kPinned, static_cast<std::int16_t>(device), flags, false, false,
      next_id_++, false};
  return true;
}

Allocation Memory::remove(const void* base, MemoryKind kind, bool registered) {
  Allocation removed;
  {
    std::unique_lock lock(lock_);
    const auto found = allocations_.find(reinterpret_cast<std::uintptr_t>(base));
    if (found == allocations_.end()) return {};
    const Allocation& allocation = found->second;
    const bool fits = kind == allocation.kind ||
                      (kind == MemoryKind::kDevice && allocation.kind == MemoryKind::kManaged);
    if (!fits || allocation.is_ours == registered || allocation.is_pooled || allocation.is_range)
      return {};
    removed = allocation;
    if (removed.kind == MemoryKind::kDevice) used_[removed.device] -= removed.size;
    writes_.erase(writes_.lower_bound(removed.base),
                  writes_.lower_bound(removed.base + removed.size));
    allocations_.erase(found);
  }
  if (removed.is_ours) munmap(reinterpret_cast<void*>(removed.base), removed.size);
  return removed;
}

Allocation Memory::find(const void* pointer) const {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  std::shared_lock lock(lock_);
  auto next = allocations_.upper_bound(address);
  if (next == allocations_.begin()) return {};
  const Allocation& candidate = std::prev(next)->second;
  return address < candidate.base + candidate.size ? candidate : Allocation{};
}

void* Memory::reserve_range(std::size_t size, std::size_t alignment) {
  size = rounded(size);
  const std::size_t more = alignment > kGranularity ? alignment : 0;
  void* start =
      mmap(nullptr, size + more, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) return nullptr;
  auto base = reinterpret_cast<std::uintptr_t>(start);
  if (more != 0) {
    const std::uintptr_t aligned = (base + more - 1) / more * more;
    if (aligned > base) munmap(start, aligned - base);
    if (base + more > aligned) {
      munmap(reinterpret_cast<void*>(aligned + size), base + more - aligned);
    }
    base = aligned;
  }
  std::unique_lock lock(lock_);
  allocations_[base] = {base, size, MemoryKind::kDevice, 0, 0, true, false, next_id_++, true};
  return reinterpret_cast<void*>(base);
}

bool Memory::release_range(const void* base, std::size_t size) {
  std::unique_lock lock(lock_);
  const auto found = allocations_.find(reinterpret_cast<std::uintptr_t>(base));
  if (found == allocations_.end() || !found->second.is_range ||
      found->second.size != rounded(size)) {
    return false;
  }
  munmap(reinterpret_cast<void*>(found->second.base), found->second.size);
  allocations_.erase(found);
  return true;
}

bool Memory::map_in_range(void* address, std::size_t size, int device) {
  const auto start = reinterpret_cast<std::uintptr_t>(address);
  std::unique_lock lock(lock_);
  auto next = allocations_.upper_bound(start);
  if (next == allocations_.begin()) return false;
  Allocation& range = std::prev(next)->second;
  if (!range.is_range || start + size > range.base + range.size) return false;
  range.device = static_cast<std::int16_t>(device);
  return mprotect(address, size, PROT_READ | PROT_WRITE) == 0;
}

bool Memory::unmap_in_range(void* address, std::size_t size) {
  const Allocation range = find(address);
  if (!range.is_range ||
      reinterpret_cast<std::uintptr_t>(address) + size > range.base + range.size) {
    return false;
  }
  return madvise(address, size, MADV_DONTNEED) == 0 && mprotect(address, size, PROT_NONE) == 0;
}

void Memory::account(int device, std::ptrdiff_t bytes) {
  std::unique_lock lock(lock_);
  used_[device] += static_cast<std::size_t>(bytes);
}

void* Memory::allocate_pooled(std::size_t size, int device) {
  size = rounded(size == 0 ? 1 : size);
  {
    std::unique_lock lock(lock_);
    const auto found = pool_[device].find(size);
    if (found != pool_[device].end()) {
      const std::uintptr_t address = found->second.back();
      found->second.pop_back();
      if (found->second.empty()) pool_[device].erase(found);
      used_[device] += size;
      return reinterpret_cast<void*>(address);
    }
  }
  void* base = allocate(size, MemoryKind::kDevice, device, 0, true);
  if (base != nullptr) {
    std::unique_lock lock(lock_);
    used_[device] += size;
  }
  return base;
}

bool Memory::free_pooled(const void* base) {
  std::unique_lock lock(lock_);
  const auto found = allocations_.find(reinterpret_cast<std::uintptr_t>(base));
  if (found == allocations_.end() || !found->second.is_pooled) return false;
  used_[found->second.device] -= found->second.size;
  pool_[found->second.device][found->second.size].push_back(found->second.base);
  return true;
}

std::size_t Memory::trim_pool(int device, std::size_t keep_bytes) {
  std::unique_lock lock(lock_);
  std::size_t kept = 0;
  auto& pool = pool_[device];
  for (auto entry = pool.begin(); entry != pool.end();) {
    auto& blocks = entry->second;
    while (!blocks.empty() && kept + entry->first > keep_bytes) {
      allocations_.erase(blocks.back());
      munmap(reinterpret_cast<void*>(blocks.back()), entry->first);
      blocks.pop_back();
    }
    kept += entry->first * blocks.size();
    entry = blocks.empty() ? pool.erase(entry) : std::next(entry);
  }
  return kept;
}

std::size_t Memory::pooled_reserved(int device) const {
  std::shared_lock lock(lock_);
  std::size_t bytes = 0;
  for (const auto& [size, blocks] : pool_[device]) bytes += size * blocks.size();
  return bytes;
}

std::size_t Memory::used(int device) const {
  std::shared_lock lock(lock_);
  return used_[device];
}

void Memory::wrote(const void* destination, std::size_t bytes, std::uint64_t launches) {
  if (bytes == 0) return;
  const auto address = reinterpret_cast<std::uintptr_t>(destination);
  std::unique_lock lock(lock_);
  writes_.erase(writes_.lower_bound(address), writes_.lower_bound(address + bytes));
  writes_[address] = {bytes, launches};
}

bool Memory::is_stale(const void* source, std::size_t bytes, std::uint64_t launches) const {
  if (bytes > kSmallBytes) return false;
  const auto address = reinterpret_cast<std::uintptr_t>(source);
  std::shared_lock lock(lock_);
  auto next = writes_.upper_bound(address);
  if (next == writes_.begin()) return true;
  const auto& [start, write] = *std::prev(next);
  if (start == address && write.bytes == bytes) return false;
  return address + bytes > start + write.bytes || write.launches != launches;
}

}  // namespace gpubusy::sim
