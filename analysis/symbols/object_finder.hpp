// SPDX-License-Identifier: Apache-2.0
//
// The files of a loaded module: the object itself and its separate debug information. A file that
// is not what was loaded is never given. Thread-safety: one thread per object.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "analysis/symbols/elf_object.hpp"

namespace gpubusy::analysis {

struct ModuleFile {
  std::string path;
  std::unique_ptr<ElfObject> object;
};

struct FoundModule {
  ModuleFile object, debug;  // either may be missing
  std::string why;           // … if both are, or what is doubtful: a clause
  bool doubtful = false;
};

class ObjectFinder {
 public:
  struct Module {
    std::string path;                  // as recorded
    std::string build_id;              // hex; empty: none
    std::uint64_t loaded_unix_ns = 0;  // when it was seen
  };
  // `same_machine`: the recorded paths are this machine's.
  ObjectFinder(std::vector<std::string> directories, bool same_machine);

  FoundModule find(const Module& module);

 private:
  ModuleFile object_of(const Module& module, FoundModule& found);
  ModuleFile debug_of(const Module& module, const ModuleFile& object) const;
  ModuleFile by_build_id(const std::string& build_id) const;
  const std::string& in_directories(const std::string& build_id);

  std::vector<std::string> directories_;
  bool same_machine_;
  bool listed_ = false;
  std::map<std::string, std::string> listed_files_;  // path by build id
};

}  // namespace gpubusy::analysis
