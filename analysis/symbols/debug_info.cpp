// SPDX-License-Identifier: Apache-2.0
#include "analysis/symbols/debug_info.hpp"

#include <dlfcn.h>
#include <dwarf.h>
#include <elfutils/libdw.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <unordered_map>

#include "analysis/names.hpp"
#include "analysis/symbols/elf_object.hpp"

namespace gpubusy::analysis {
namespace {

constexpr std::size_t kMaxUnits = 1 << 20;
constexpr std::size_t kMaxDepth = 256;        // of entries in each other
constexpr std::size_t kMaxEntries = 1 << 25;  // of a unit
constexpr std::size_t kMaxRanges = 1 << 16;   // of an entry

// What is used of libdw. Its headers give the types; nothing is linked.
struct Libdw {
#define GPUBUSY_LIBDW(X)  \
  X(dwarf_begin)          \
  X(dwarf_end)            \
  X(dwarf_get_units)      \
  X(dwarf_child)          \
  X(dwarf_siblingof)      \
  X(dwarf_tag)            \
  X(dwarf_ranges)         \
  X(dwarf_haspc)          \
  X(dwarf_attr)           \
  X(dwarf_attr_integrate) \
  X(dwarf_formudata)      \
  X(dwarf_formstring)     \
  X(dwarf_formref_die)    \
  X(dwarf_dieoffset)      \
  X(dwarf_diename)        \
  X(dwarf_getsrc_die)     \
  X(dwarf_linesrc)        \
  X(dwarf_lineno)         \
  X(dwarf_getsrcfiles)    \
  X(dwarf_filesrc)
#define GPUBUSY_MEMBER(name) decltype(&::name) name = nullptr;
  GPUBUSY_LIBDW(GPUBUSY_MEMBER)
#undef GPUBUSY_MEMBER
  bool complete = false;

  Libdw() {
    void* library = dlopen("libdw.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    complete = true;
#define GPUBUSY_LOOK_UP(name)                                        \
  name = reinterpret_cast<decltype(&::name)>(dlsym(library, #name)); \
  complete = complete && name != nullptr;
    GPUBUSY_LIBDW(GPUBUSY_LOOK_UP)
#undef GPUBUSY_LOOK_UP
#undef GPUBUSY_LIBDW
  }
};

const Libdw& libdw() {
  static const Libdw library;
  return library;
}

struct Function {
  std::uint64_t begin, end;
  Dwarf_Die entry;
};

// A namespace, class or function with others in it.
struct Scope {
  Dwarf_Die entry;
  std::size_t parent;
};
constexpr std::size_t kNoScope = ~std::size_t{0};

struct Unit {
  Dwarf_Die entry;            // with the lines
  Dwarf_Die functions_entry;  // of split DWARF in another file
  bool indexed = false;
  std::vector<Function> functions;  // by begin
  std::vector<Scope> scopes;
  std::unordered_map<Dwarf_Off, std::size_t> scope_of;  // functions, by their entry's place
};

struct UnitRange {
  std::uint64_t begin, end;
  std::size_t unit;
};

template <class Use>
void for_each_range(const Libdw& dw, Dwarf_Die& entry, Use use) {
  std::ptrdiff_t at = 0;
  Dwarf_Addr base = 0, begin = 0, end = 0;
  for (std::size_t n = 0; n < kMaxRanges; ++n) {
    at = dw.dwarf_ranges(&entry, at, &base, &begin, &end);
    if (at <= 0) return;
    if (begin < end) use(begin, end);
  }
}

bool is_scope(int tag) {
  return tag == DW_TAG_namespace || tag == DW_TAG_class_type || tag == DW_TAG_structure_type ||
         tag == DW_TAG_union_type || tag == DW_TAG_subprogram;
}

std::string plain_path(const char* path) {
  return path == nullptr ? std::string() : std::filesystem::path(path).lexically_normal().string();
}

}  // namespace

struct DebugInfo::State {
  const Libdw& dw = libdw();
  int descriptor = -1;
  Dwarf* dwarf = nullptr;
  std::deque<Unit> units;
  std::vector<UnitRange> ranges;  // by begin

  ~State() {
    if (dwarf != nullptr) dw.dwarf_end(dwarf);
    if (descriptor >= 0) close(descriptor);
  }

  // By what each unit says itself: .debug_aranges is missing where clang compiled.
  void index_units() {
    Dwarf_CU* cu = nullptr;
    Dwarf_Die entry{}, split{};
    std::uint8_t type = 0;
    while (units.size() < kMaxUnits &&
           dw.dwarf_get_units(dwarf, cu, &cu, nullptr, &type, &entry, &split) == 0) {
      if (type != DW_UT_compile && type != DW_UT_skeleton) continue;
      Unit& unit = units.emplace_back();
      unit.entry = entry;
      unit.functions_entry = split.addr != nullptr ? split : entry;
      for_each_range(dw, entry, [&](std::uint64_t begin, std::uint64_t end) {
        ranges.push_back({begin, end, units.size() - 1});
      });
    }
    std::sort(ranges.begin(), ranges.end(), [](const UnitRange& a, const UnitRange& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.unit < b.unit;
    });
  }

  Unit* unit_at(std::uint64_t address) {
    auto range =
        std::upper_bound(ranges.begin(), ranges.end(), address,
                         [](std::uint64_t value, const UnitRange& r) { return value < r.begin; });
    if (range == ranges.begin() || address >= (--range)->end) return nullptr;
    return &units[range->unit];
  }

  // All functions with code, wherever they stand in namespaces, classes and each other.
  void index_functions(Unit& unit) {
    unit.indexed = true;
    struct Open {
      Dwarf_Die entry;
      std::size_t scope;  // that it stands in
    };
    std::vector<Open> open;
    Dwarf_Die next{};
    if (dw.dwarf_child(&unit.functions_entry, &next) != 0) return;
    open.push_back({next, kNoScope});
    for (std::size_t n = 0; n < kMaxEntries && !open.empty(); ++n) {
      Dwarf_Die entry = open.back().entry;
      const std::size_t outer = open.back().scope;
      const int tag = dw.dwarf_tag(&entry);
      if (tag == DW_TAG_subprogram) {
        for_each_range(dw, entry, [&](std::uint64_t begin, std::uint64_t end) {
          unit.functions.push_back({begin, end, entry});
        });
        if (outer != kNoScope) unit.scope_of.try_emplace(dw.dwarf_dieoffset(&entry), outer);
      }
      if (dw.dwarf_siblingof(&entry, &next) == 0) {
        open.back().entry = next;
      } else {
        open.pop_back();
      }
      Dwarf_Die child{};
      if (open.size() >= kMaxDepth || dw.dwarf_child(&entry, &child) != 0) continue;
      std::size_t inner = outer;
      if (is_scope(tag)) {
        inner = unit.scopes.size();
        unit.scopes.push_back({entry, outer});
      }
      open.push_back({child, inner});
    }
    std::stable_sort(unit.functions.begin(), unit.functions.end(),
                     [](const Function& a, const Function& b) { return a.begin < b.begin; });
  }

  const Function* function_at(Unit& unit, std::uint64_t address) {
    if (!unit.indexed) index_functions(unit);
    auto it =
        std::upper_bound(unit.functions.begin(), unit.functions.end(), address,
                         [](std::uint64_t value, const Function& f) { return value < f.begin; });
    return it == unit.functions.begin() || address >= (--it)->end ? nullptr : &*it;
  }

  // Outermost first.
  std::vector<Dwarf_Die> inlined_at(const Dwarf_Die& function, std::uint64_t address) {
    std::vector<Dwarf_Die> out;
    Dwarf_Die parent = function;
    Dwarf_Die entry{};
    std::size_t depth = 0;
    bool deeper = dw.dwarf_child(&parent, &entry) == 0;
    for (std::size_t n = 0; deeper && n < kMaxEntries; ++n) {
      const int tag = dw.dwarf_tag(&entry);
      if ((tag == DW_TAG_inlined_subroutine || tag == DW_TAG_lexical_block) &&
          dw.dwarf_haspc(&entry, address) == 1) {
        if (tag == DW_TAG_inlined_subroutine) out.push_back(entry);
        parent = entry;
        deeper = ++depth < kMaxDepth && dw.dwarf_child(&parent, &entry) == 0;
        continue;
      }
      Dwarf_Die next{};
      deeper = dw.dwarf_siblingof(&entry, &next) == 0;
      entry = next;
    }
    return out;
  }

  // The entry that says what an inlined function, or a part of one, is called.
  Dwarf_Die named_entry(Dwarf_Die entry) {
    for (std::size_t n = 0; n < kMaxDepth; ++n) {
      Dwarf_Attribute attribute{};
      Dwarf_Die next{};
      if (dw.dwarf_attr(&entry, DW_AT_abstract_origin, &attribute) == nullptr &&
          dw.dwarf_attr(&entry, DW_AT_specification, &attribute) == nullptr) {
        break;
      }
      if (dw.dwarf_formref_die(&attribute, &next) == nullptr) break;
      entry = next;
    }
    return entry;
  }

  std::string name_of(const Unit& unit, Dwarf_Die entry) {
    Dwarf_Attribute attribute{};
    for (const unsigned kind : {DW_AT_linkage_name, DW_AT_MIPS_linkage_name}) {
      if (dw.dwarf_attr_integrate(&entry, kind, &attribute) == nullptr) continue;
      const char* text = dw.dwarf_formstring(&attribute);
      if (text != nullptr) return demangle(std::string(whole_function(text)));
    }
    const char* own = dw.dwarf_diename(&entry);
    if (own == nullptr) return {};
    std::string name = own;
    Dwarf_Die named = named_entry(entry);
    auto scope = unit.scope_of.find(dw.dwarf_dieoffset(&named));
    std::size_t at = scope == unit.scope_of.end() ? kNoScope : scope->second;
    for (std::size_t n = 0; at != kNoScope && n < kMaxDepth; ++n) {
      Dwarf_Die around = unit.scopes[at].entry;
      const char* text = dw.dwarf_diename(&around);
      const bool space = dw.dwarf_tag(&around) == DW_TAG_namespace;
      name = std::string(text != nullptr ? text
                         : space         ? "(anonymous namespace)"
                                         : "<unnamed>") +
             "::" + name;
      // A function's own entry may be an instance of one that stands in a namespace.
      around = named_entry(around);
      scope = unit.scope_of.find(dw.dwarf_dieoffset(&around));
      at = scope != unit.scope_of.end() ? scope->second : unit.scopes[at].parent;
    }
    return name;
  }

  std::uint64_t number(Dwarf_Die& entry, unsigned kind) {
    Dwarf_Attribute attribute{};
    Dwarf_Word value = 0;
    if (dw.dwarf_attr(&entry, kind, &attribute) == nullptr ||
        dw.dwarf_formudata(&attribute, &value) != 0) {
      return 0;
    }
    return value;
  }
};

DebugInfo::DebugInfo() : state_(std::make_unique<State>()) {}
DebugInfo::~DebugInfo() = default;

bool DebugInfo::library_is_there() { return libdw().complete; }

std::unique_ptr<DebugInfo> DebugInfo::open(const std::string& path) {
  if (!library_is_there()) return nullptr;
  std::unique_ptr<DebugInfo> info(new DebugInfo);
  State& state = *info->state_;
  state.descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  if (state.descriptor < 0) return nullptr;
  state.dwarf = state.dw.dwarf_begin(state.descriptor, DWARF_C_READ);
  if (state.dwarf == nullptr) return nullptr;
  state.index_units();
  return info;
}

std::vector<DebugInfo::Place> DebugInfo::at(std::uint64_t address) {
  State& s = *state_;
  Unit* unit = s.unit_at(address);
  if (unit == nullptr) return {};
  Place here;
  if (Dwarf_Line* line = s.dw.dwarf_getsrc_die(&unit->entry, address); line != nullptr) {
    // Line 0 is code of no line in particular.
    if (s.dw.dwarf_lineno(line, &here.line) == 0 && here.line > 0) {
      here.file = plain_path(s.dw.dwarf_linesrc(line, nullptr, nullptr));
    } else {
      here.line = 0;
    }
  }
  const Function* function = s.function_at(*unit, address);
  if (function == nullptr) return here.line > 0 ? std::vector{here} : std::vector<Place>();

  std::vector<Dwarf_Die> inlined = s.inlined_at(function->entry, address);
  Dwarf_Files* files = nullptr;
  std::size_t file_count = 0;
  if (!inlined.empty() &&
      s.dw.dwarf_getsrcfiles(&unit->functions_entry, &files, &file_count) != 0) {
    files = nullptr;
  }
  std::vector<Place> out;
  for (auto entry = inlined.rbegin(); entry != inlined.rend(); ++entry) {
    here.function = s.name_of(*unit, *entry);
    out.push_back(std::move(here));
    here = {};
    const std::uint64_t file = s.number(*entry, DW_AT_call_file);
    const std::uint64_t line = s.number(*entry, DW_AT_call_line);
    if (files == nullptr || file >= file_count || line == 0 || line > INT32_MAX) continue;
    here.file = plain_path(s.dw.dwarf_filesrc(files, file, nullptr, nullptr));
    here.line = here.file.empty() ? 0 : static_cast<int>(line);
  }
  here.function = s.name_of(*unit, function->entry);
  out.push_back(std::move(here));
  return out;
}

}  // namespace gpubusy::analysis
