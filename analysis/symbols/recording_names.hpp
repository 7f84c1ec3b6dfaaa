// SPDX-License-Identifier: Apache-2.0
//
// NativeNames of a recording, from the files of its modules and from what was kept beside it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <tl/expected.hpp>

#include "analysis/symbols/debug_info.hpp"
#include "analysis/symbols/module_map.hpp"
#include "analysis/symbols/name_file.hpp"
#include "analysis/symbols/native_names.hpp"
#include "analysis/symbols/object_finder.hpp"
#include "recording/recording.hpp"

namespace gpubusy::analysis {

class RecordingNames final : public NativeNames {
 public:
  RecordingNames(const recording::Recording& recording, const SymbolOptions& options);
  ~RecordingNames() override;

  const std::vector<NativeFrame>& at(std::uint64_t location) override;
  std::vector<NameProblem> problems() const override;

  // Writes the names of all native addresses of the recording beside it, where any are known that
  // are not there yet.
  tl::expected<void, recording::Error> keep();

 private:
  struct Object;  // a module with its files
  struct Address {
    std::vector<NativeFrame> frames;
    const recording::Module* module = nullptr;
  };
  const Address& address_at(std::uint64_t location);
  Object& object_of(const recording::Module& module);
  std::vector<NativeFrame> from_files(Object& object, std::uint64_t offset);
  void load_kept();
  void count(const std::string& module, const std::string& why, bool curable);

  const recording::Recording& recording_;
  std::vector<recording::Module> modules_;  // the program itself with its path
  ModuleMap map_;
  ObjectFinder finder_;
  NameFile kept_;
  bool kept_loaded_ = false;
  std::map<std::pair<std::string, std::string>, std::unique_ptr<Object>> objects_;
  std::unordered_map<std::uint64_t, Address> addresses_;                 // by location
  std::map<std::pair<std::string, std::string>, NameProblem> problems_;  // by module and why
};

}  // namespace gpubusy::analysis
