// SPDX-License-Identifier: Apache-2.0
#include "launcher/hook_names.hpp"

#include <algorithm>
#include <string_view>
#include <vector>

#include "preload/hooks/rows.hpp"
#include "recording/format.hpp"
#include "runtime/categories.hpp"

namespace gpubusy::launcher {
namespace {

constexpr HookName kNames[] = {
#define EACH(symbol, category) {#symbol, runtime::is_recorded(recording::Category::k##category)},
#define HOOK(variants, symbol, category, ...) GPUBUSY_ROW_##variants(EACH, symbol, category)
#define LAUNCH(variants, symbol, ...) GPUBUSY_ROW_##variants(EACH, symbol, Launch)
#define OWN(symbol, category) EACH(symbol, category)
#include "preload/hooks/cuda_runtime.def"
// Apart from each other, since clang-format sorts includes that stand together.
#include "preload/hooks/cuda_driver.def"
// Likewise.
#include "preload/hooks/cupti.def"
#define LIBRARY(library, symbol, ...) {#symbol, false},
// Likewise.
#include "preload/hooks/libraries.def"
#undef LIBRARY
#undef HOOK
#undef LAUNCH
#undef OWN
#undef EACH
};

std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
      diagonal = above;
    }
  }
  return row[b.size()];
}

}  // namespace

std::span<const HookName> hook_names() { return kNames; }

bool can_end_steps(const std::string& name) {
  return std::any_of(std::begin(kNames), std::end(kNames),
                     [&](const HookName& h) { return h.ends_steps && name == h.name; });
}

std::string nearest_step_call(const std::string& name) {
  constexpr std::size_t kLongest = 128;
  if (name.size() > kLongest) return {};
  std::string best;
  std::size_t least = name.size() / 3 + 1;
  for (const HookName& h : kNames) {
    if (!h.ends_steps) continue;
    const std::size_t d = distance(name, h.name);
    if (d < least) {
      least = d;
      best = h.name;
    }
  }
  return best;
}

}  // namespace gpubusy::launcher
