// SPDX-License-Identifier: Apache-2.0
#include "analysis/symbols/recording_names.hpp"

#include <unistd.h>

#include <algorithm>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include "analysis/chrome_trace/chrome_trace.hpp"
#include "analysis/names.hpp"
#include "analysis/symbols/elf_object.hpp"
#include "analysis/symbols/memory_source.hpp"
#include "analysis/symbols/xz.hpp"
#include "recording/utf8.hpp"

namespace gpubusy::analysis {
namespace {

constexpr std::uint64_t kMaxPacked = std::uint64_t{16} << 20;  // of .gnu_debugdata
constexpr std::size_t kMaxUnpacked = std::size_t{256} << 20;

std::vector<recording::Module> with_paths(const recording::Recording& recording) {
  std::vector<recording::Module> out = recording.modules;
  for (recording::Module& module : out) {
    if (module.path.empty()) module.path = recording.executable;
  }
  return out;
}

bool is_this_machine(const std::string& host) {
  char name[256] = "";
  return gethostname(name, sizeof name - 1) == 0 && host == name;
}

bool is_named(const std::vector<NativeFrame>& frames) { return !frames.back().function.empty(); }
bool has_line(const std::vector<NativeFrame>& frames) { return frames.front().line > 0; }

}  // namespace

struct RecordingNames::Object {
  FoundModule files;
  std::vector<SymbolTable> tables;  // the best first
  std::unique_ptr<ElfObject> packed;
  std::unique_ptr<DebugInfo> lines;
  bool wants_lines = false;  // which are there, and libdw is not

  void open() {
    const ElfObject* object = files.object.object.get();
    const ElfObject* debug = files.debug.object.get();
    const auto add = [&](const ElfObject* file, SymbolTable::Kind kind) {
      if (file == nullptr) return false;
      SymbolTable table(*file, kind);
      const bool found = !table.empty();
      if (found) tables.push_back(std::move(table));
      return found;
    };
    const bool all = add(object, SymbolTable::Kind::kAll);
    const bool debug_all = add(debug, SymbolTable::Kind::kAll);
    add(object, SymbolTable::Kind::kExported);
    if (!all && !debug_all && object != nullptr) {
      // What Fedora leaves in a stripped file: the functions that are not exported.
      auto bytes = unpack_xz(object->contents(".gnu_debugdata", kMaxPacked), kMaxUnpacked);
      if (!bytes.empty())
        packed = ElfObject::read(std::make_unique<MemorySource>(std::move(bytes)));
      add(packed.get(), SymbolTable::Kind::kAll);
    }
    for (const ModuleFile* file : {&files.object, &files.debug}) {
      if (file->object == nullptr || !file->object->has_debug_info()) continue;
      wants_lines = !DebugInfo::library_is_there();
      lines = DebugInfo::open(file->path);
      break;
    }
  }

  // Empty: nothing is known of the address.
  std::vector<NativeFrame> at(std::uint64_t address) {
    std::vector<NativeFrame> out;
    if (lines != nullptr) {
      for (DebugInfo::Place& place : lines->at(address)) {
        NativeFrame frame;
        frame.function = recording::repair_utf8(place.function);
        frame.file = recording::repair_utf8(place.file);
        frame.line = place.line;
        frame.inlined = true;
        out.push_back(std::move(frame));
      }
    }
    std::string linkage;
    for (const SymbolTable& table : tables) {
      linkage = recording::repair_utf8(table.at(address));
      if (!linkage.empty()) break;
    }
    if (out.empty() && linkage.empty()) return out;
    if (out.empty()) out.emplace_back();
    out.back().inlined = false;
    if (!linkage.empty()) {
      out.back().function = recording::repair_utf8(demangle(std::string(whole_function(linkage))));
      out.back().linkage = std::move(linkage);
    }
    return out;
  }
};

RecordingNames::RecordingNames(const recording::Recording& recording, const SymbolOptions& options)
    : recording_(recording),
      modules_(with_paths(recording)),
      map_(modules_),
      finder_(options.directories, is_this_machine(recording.host)),
      kept_(recording) {}

RecordingNames::~RecordingNames() = default;

const std::vector<NativeFrame>& RecordingNames::at(std::uint64_t location) {
  return address_at(location).frames;
}

void RecordingNames::load_kept() {
  if (kept_loaded_) return;
  kept_loaded_ = true;
  kept_.read(NameFile::path_for(recording_));
}

RecordingNames::Object& RecordingNames::object_of(const recording::Module& module) {
  std::unique_ptr<Object>& object = objects_[{module.path, module.build_id}];
  if (object == nullptr) {
    object = std::make_unique<Object>();
    object->files =
        finder_.find({module.path, module.build_id, unix_time(recording_, module.time_ns)});
    object->open();
  }
  return *object;
}

std::vector<NativeFrame> RecordingNames::from_files(Object& object, std::uint64_t offset) {
  std::vector<NativeFrame> out = object.at(offset - 1);
  // Nothing calls the code behind a signal handler or a fiber's first function: it returns to their
  // first byte.
  if (out.empty()) out = object.at(offset);
  if (out.empty()) out.emplace_back();
  return out;
}

void RecordingNames::count(const std::string& module, const std::string& why, bool curable) {
  NameProblem& problem = problems_[{module, why}];
  problem.module = module;
  problem.why = why;
  problem.curable = curable;
  ++problem.addresses;
}

const RecordingNames::Address& RecordingNames::address_at(std::uint64_t location) {
  const auto [entry, fresh] = addresses_.try_emplace(location);
  Address& address = entry->second;
  if (!fresh) return address;
  load_kept();
  // The call lies before the return address, which may be the first of the next function or file.
  const ModuleMap::Found found = map_.at(location - 1);
  if (found.module == ModuleMap::kNone) {
    address.frames.emplace_back();
    address.frames.back().offset = location;
    count({}, "in no file that was seen (made at run time, or unloaded early)", false);
    return address;
  }
  const recording::Module& module = modules_[found.module];
  address.module = &module;
  const std::uint64_t offset = location - module.base;
  Object& object = object_of(module);
  std::vector<NativeFrame> frames = from_files(object, offset);
  bool doubtful = object.files.doubtful;
  const std::vector<NativeFrame>* kept = kept_.find(module, offset);
  if (kept != nullptr && (!is_named(frames) || (!has_line(frames) && has_line(*kept)))) {
    frames = *kept;
    doubtful = std::any_of(frames.begin(), frames.end(),
                           [](const NativeFrame& frame) { return frame.doubtful; });
    if (doubtful && !found.doubtful) {
      count(module.path, "its names were doubtful when they were kept", true);
    }
  } else if (!object.files.why.empty()) {
    count(module.path, object.files.why, true);
  } else if (!is_named(frames)) {
    count(module.path, "no symbol is there", false);
  } else if (object.wants_lines) {
    count({}, "source lines need libdw.so.1, which is not on this machine", true);
  }
  if (found.doubtful) count(module.path, "another file lay there at another time", false);
  for (NativeFrame& frame : frames) {
    frame.module = module.path;
    frame.offset = offset;
    frame.doubtful = doubtful || found.doubtful;
  }
  address.frames = std::move(frames);
  return address;
}

std::vector<NameProblem> RecordingNames::problems() const {
  std::vector<NameProblem> out;
  for (const auto& [key, problem] : problems_) out.push_back(problem);
  std::stable_sort(out.begin(), out.end(), [](const NameProblem& a, const NameProblem& b) {
    return a.addresses > b.addresses;
  });
  return out;
}

tl::expected<void, recording::Error> RecordingNames::keep() {
  load_kept();
  NameFile all(recording_);
  std::set<std::uint64_t> locations;
  for (const auto& [id, node] : recording_.stack_nodes) {
    if (node.kind == recording::FrameKind::kNative) locations.insert(node.location);
  }
  for (const std::uint64_t location : locations) {
    const Address& address = address_at(location);
    if (address.module == nullptr) continue;
    all.put(*address.module, location - address.module->base, address.frames);
  }
  if (all.empty() || all.text() == kept_.text()) return {};
  auto written = all.write(NameFile::path_for(recording_));
  if (!written) return tl::make_unexpected(std::move(written).error());
  return {};
}

std::unique_ptr<NativeNames> open_native_names(const recording::Recording& recording,
                                               const SymbolOptions& options) {
  return std::make_unique<RecordingNames>(recording, options);
}

std::string to_text(const NameProblem& problem) {
  return fmt::format("{}{}{} ({} native address{})", file_name(problem.module),
                     problem.module.empty() ? "" : ": ", problem.why, problem.addresses,
                     problem.addresses == 1 ? "" : "es");
}

std::string to_text(const NativeFrame& frame) {
  std::string out;
  if (!frame.function.empty()) {
    out = frame.function;
  } else if (frame.module.empty()) {
    out = fmt::format("{:#x}", frame.offset);
  } else {
    out = fmt::format("{}+{:#x}", file_name(frame.module), frame.offset);
  }
  if (frame.line > 0) out += fmt::format(" ({}:{})", frame.file, frame.line);
  return frame.doubtful ? out + " ?" : out;
}

}  // namespace gpubusy::analysis
