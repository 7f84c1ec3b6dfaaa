// SPDX-License-Identifier: Apache-2.0
#include "analysis/symbols/object_finder.hpp"

#include <elf.h>
#include <sys/auxv.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "analysis/names.hpp"
#include "analysis/symbols/memory_source.hpp"
#include "recording/file_source.hpp"

namespace gpubusy::analysis {
namespace {

using recording::FileSource;

constexpr std::size_t kMaxListed = 4096;          // files of a directory of the user's
constexpr std::size_t kRecordedBuildId = 2 * 32;  // hex digits, of which recordings keep no more
constexpr std::size_t kMaxVdso = 1 << 20;
constexpr const char* kSystemDebug = "/usr/lib/debug";
constexpr std::string_view kDeleted = " (deleted)";

bool same_build_id(const std::string& recorded, const std::string& of_file) {
  return recorded == of_file ||
         (recorded.size() == kRecordedBuildId && of_file.starts_with(recorded));
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

ModuleFile open_object(const std::string& path) {
  auto source = std::make_unique<FileSource>(path);
  if (!source->good()) return {};
  return {path, ElfObject::read(std::move(source))};
}

bool has_crc(const ElfObject& object, std::uint32_t wanted) {
  std::vector<unsigned char> chunk(1 << 20);
  uLong crc = crc32(0, nullptr, 0);
  const recording::ByteSource& source = object.source();
  for (std::uint64_t at = 0; at < source.size();) {
    const std::size_t got = source.read(at, chunk.data(), chunk.size());
    if (got == 0) return false;
    crc = crc32(crc, chunk.data(), static_cast<uInt>(got));
    at += got;
  }
  return crc == wanted;
}

// The kernel's page of code is in no file, but each process has it.
ModuleFile own_vdso() {
  const auto* image = reinterpret_cast<const char*>(getauxval(AT_SYSINFO_EHDR));
  if (image == nullptr) return {};
  Elf64_Ehdr header;
  std::memcpy(&header, image, sizeof header);
  const std::uint64_t size =
      std::max<std::uint64_t>(header.e_shoff + std::uint64_t{header.e_shnum} * header.e_shentsize,
                              header.e_phoff + std::uint64_t{header.e_phnum} * header.e_phentsize);
  if (size > kMaxVdso) return {};
  std::vector<std::byte> bytes(size);
  std::memcpy(bytes.data(), image, size);
  return {{}, ElfObject::read(std::make_unique<MemorySource>(std::move(bytes)))};
}

bool is_vdso(const std::string& path) {
  return path.starts_with("linux-vdso.so") || path == "[vdso]";
}

}  // namespace

ObjectFinder::ObjectFinder(std::vector<std::string> directories, bool same_machine)
    : directories_(std::move(directories)), same_machine_(same_machine) {}

FoundModule ObjectFinder::find(const Module& module) {
  FoundModule found;
  if (is_vdso(module.path)) {
    found.object = own_vdso();
    if (found.object.object != nullptr && !module.build_id.empty() &&
        same_build_id(module.build_id, found.object.object->build_id())) {
      return found;
    }
    found.object = {};
    found.why = "it is the code of another kernel";
    return found;
  }
  found.object = object_of(module, found);
  found.debug = debug_of(module, found.object);
  if (found.object.object != nullptr || found.debug.object != nullptr) {
    if (!found.doubtful) found.why.clear();
  }
  return found;
}

ModuleFile ObjectFinder::object_of(const Module& module, FoundModule& found) {
  std::vector<std::string> recorded{module.path};
  if (module.path.ends_with(kDeleted)) {
    recorded.push_back(module.path.substr(0, module.path.size() - kDeleted.size()));
  }
  struct Place {
    std::string path;
    bool recorded;
  };
  std::vector<Place> places;
  for (const std::string& path : recorded) {
    // The program's working directory is not known.
    if (path.starts_with('/')) places.push_back({path, true});
  }
  for (const std::string& directory : directories_) {
    for (const std::string& path : recorded) {
      places.push_back({directory + "/" + path, false});
      places.push_back({fmt::format("{}/{}", directory, file_name(path)), false});
    }
  }
  found.why = "its file is not here";
  bool changed = false;
  for (const Place& place : places) {
    auto source = std::make_unique<FileSource>(place.path);
    if (source->error() != 0) {
      if (place.recorded && source->error() != ENOENT && source->error() != ENOTDIR && !changed) {
        found.why = fmt::format("its file cannot be read ({})",
                                std::generic_category().message(source->error()));
      }
      continue;
    }
    if (!source->regular()) continue;
    const std::uint64_t written = source->written_ns(), moved = source->changed_ns();
    ModuleFile file{place.path, ElfObject::read(std::move(source))};
    const std::string build_id = file.object == nullptr ? "" : file.object->build_id();
    if (!module.build_id.empty()) {
      if (file.object != nullptr && same_build_id(module.build_id, build_id)) return file;
    } else if (file.object != nullptr && build_id.empty()) {
      // Nothing but its times tells whether the file is the one that was loaded.
      if (place.recorded && same_machine_ && std::max(written, moved) <= module.loaded_unix_ns) {
        return file;
      }
      if (!place.recorded && written <= module.loaded_unix_ns) {
        found.doubtful = true;
        found.why = fmt::format("it has no build id, so that {} may be another file", place.path);
        return file;
      }
      if (place.recorded && !same_machine_) {
        found.why = "it has no build id, and the file of that name on this machine may be another";
        continue;
      }
    }
    if (!place.recorded) continue;  // a file of that name, for another program
    changed = true;
    found.why = "it has changed since the recording";
  }
  if (module.build_id.empty()) return {};
  return open_object(in_directories(module.build_id));
}

// A file of any name in the user's directories, by its build id; empty: none.
const std::string& ObjectFinder::in_directories(const std::string& build_id) {
  static const std::string kNowhere;
  if (!listed_) {
    listed_ = true;
    for (const std::string& directory : directories_) {
      std::vector<std::string> names;
      std::error_code code;
      std::filesystem::directory_iterator it(directory, code);
      for (const std::filesystem::directory_iterator end; !code && it != end; it.increment(code)) {
        if (names.size() == kMaxListed) break;
        names.push_back(it->path().string());
      }
      std::sort(names.begin(), names.end());
      for (const std::string& name : names) {
        const ModuleFile file = open_object(name);
        if (file.object == nullptr || file.object->build_id().empty()) continue;
        listed_files_.try_emplace(file.object->build_id().substr(0, kRecordedBuildId), name);
      }
    }
  }
  const auto file = listed_files_.find(build_id);
  return file == listed_files_.end() ? kNowhere : file->second;
}

ModuleFile ObjectFinder::by_build_id(const std::string& build_id) const {
  if (build_id.size() < 4) return {};
  std::vector<std::string> roots = directories_;
  roots.emplace_back(kSystemDebug);
  for (const std::string& root : roots) {
    for (const char* ending : {".debug", ""}) {
      ModuleFile file = open_object(fmt::format("{}/.build-id/{}/{}{}", root, build_id.substr(0, 2),
                                                build_id.substr(2), ending));
      if (file.object != nullptr && same_build_id(build_id, file.object->build_id())) return file;
    }
  }
  return {};
}

ModuleFile ObjectFinder::debug_of(const Module& module, const ModuleFile& object) const {
  if (object.object != nullptr && object.object->has_debug_info()) return {};
  // The file's own id may be longer than the recorded one.
  std::string build_id = module.build_id;
  if (object.object != nullptr) build_id = object.object->build_id();
  ModuleFile found = by_build_id(build_id);
  if (found.object != nullptr || object.object == nullptr) return found;
  const auto link = object.object->debug_link();
  if (!link) return {};
  const std::string folder = folder_of(object.path);
  std::vector<std::string> folders{folder, folder + "/.debug"};
  for (const std::string& directory : directories_) {
    folders.push_back(directory);
    folders.push_back(directory + "/.debug");
    folders.push_back(directory + folder);
  }
  folders.push_back(kSystemDebug + folder);
  for (const std::string& place : folders) {
    ModuleFile file = open_object(place + "/" + link->file_name);
    if (file.object == nullptr) continue;
    const std::string& id = file.object->build_id();
    const bool right = build_id.empty() || id.empty() ? has_crc(*file.object, link->crc)
                                                      : same_build_id(build_id, id);
    if (right) return file;
  }
  return {};
}

}  // namespace gpubusy::analysis
