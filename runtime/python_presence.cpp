// SPDX-License-Identifier: Apache-2.0
#include "runtime/python_presence.hpp"

#include <atomic>
#include <cstdint>

#include "runtime/no_cancel.hpp"
#include "runtime/python/frames.hpp"
#include "runtime/recorder.hpp"

namespace gpubusy::runtime {
namespace {

constexpr std::uint32_t kAskAlways = 16;
constexpr std::uint32_t kAskEvery = 256;

enum class Presence : std::uint8_t { kUnknown, kReadable, kUnreadable };
constinit std::atomic<Presence> g_presence{Presence::kUnknown};
constinit std::atomic<std::uint32_t> g_asked{0};

}  // namespace

bool python_may_be_here() noexcept {
  const Presence known = g_presence.load(std::memory_order_relaxed);
  if (known != Presence::kUnknown) [[likely]]
    return known == Presence::kReadable;
  const std::uint32_t asked = g_asked.fetch_add(1, std::memory_order_relaxed);
  if (asked >= kAskAlways && asked % kAskEvery != 0) return false;
  const NoCancel no_cancel;
  const python::Support support = python::probe();
  switch (support.state) {
    case python::State::kNoInterpreter: return false;
    case python::State::kReady:
      g_presence.store(Presence::kReadable, std::memory_order_relaxed);
      return true;
    default:
      if (g_presence.exchange(Presence::kUnreadable) == Presence::kUnknown) {
        notice(recording::NoticeKind::kPython, support.text);
      }
      return false;
  }
}

void forget_python_after_fork() noexcept {
  g_presence.store(Presence::kUnknown, std::memory_order_relaxed);
  g_asked.store(0, std::memory_order_relaxed);
}

}  // namespace gpubusy::runtime
