// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <string>
#include <string_view>

#include "analysis/names.hpp"
#include "analysis/trace_import/kineto.hpp"

namespace gpubusy::analysis {
namespace {

using recording::Category;

struct Row {
  const char* name;
  Category category;
};
// The hook table itself: one place says what a function is.
constexpr Row kRows[] = {
#define HOOK(variants, symbol, category, ...) {#symbol, Category::k##category},
#define LAUNCH(variants, symbol, ...) {#symbol, Category::kLaunch},
#define OWN(symbol, category) {#symbol, Category::k##category},
#include "preload/hooks/cuda_runtime.def"
// Apart from each other, since clang-format sorts includes that stand together.
#include "preload/hooks/cuda_driver.def"
#undef HOOK
#undef LAUNCH
#undef OWN
};

}  // namespace

Category category_of_api(const std::string& name) {
  static const std::map<std::string_view, Category> table = [] {
    std::map<std::string_view, Category> out;
    for (const Row& row : kRows) {
      out.emplace(row.name, row.category);
      out.emplace(api_base_name(row.name), row.category);
    }
    return out;
  }();
  auto found = table.find(name);
  if (found == table.end()) found = table.find(api_base_name(name));
  return found == table.end() ? Category::kOther : found->second;
}

}  // namespace gpubusy::analysis
