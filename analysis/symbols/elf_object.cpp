// SPDX-License-Identifier: Apache-2.0
#include "analysis/symbols/elf_object.hpp"

#include <elf.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <tuple>
#include <utility>

#include "analysis/symbols/elf_bytes.hpp"

namespace gpubusy::analysis {
namespace {

using recording::ByteSource;

constexpr std::uint64_t kMaxSections = 1 << 16;
constexpr std::uint64_t kMaxSegments = 1 << 12;
constexpr std::uint64_t kMaxSectionNames = 16 << 20;
constexpr std::uint64_t kMaxSymbols = 1 << 26;  // looked at; a large browser has 2^22
constexpr std::size_t kMaxFunctions = 1 << 24;  // kept
constexpr std::size_t kChunk = 1 << 15;         // symbols read at once
constexpr std::size_t kMaxName = 1 << 16;
constexpr std::size_t kMaxAliases = 64;           // compared by name
constexpr std::uint64_t kMaxWithoutSize = 16384;  // bytes of a function of unknown length
constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

std::string text_at(const std::vector<char>& texts, std::uint64_t offset) {
  if (offset >= texts.size()) return {};
  return {texts.data() + offset, strnlen(texts.data() + offset, texts.size() - offset)};
}

std::uint32_t rank_of(const Elf64_Sym& symbol) {
  const unsigned binding = ELF64_ST_BIND(symbol.st_info);
  const std::uint32_t by_binding = binding == STB_LOCAL ? 2 : binding == STB_WEAK ? 1 : 0;
  const bool function = ELF64_ST_TYPE(symbol.st_info) != STT_NOTYPE;
  return by_binding * 4 + (function ? 0 : 2) + (symbol.st_size > 0 ? 0 : 1);
}

bool is_sized(std::uint32_t rank) { return rank % 2 == 0; }

bool is_plainer(std::string_view a, std::string_view b) {
  const auto key = [](std::string_view s) {
    return std::tuple(std::min(s.find_first_not_of('_'), s.size()), s.size(), s);
  };
  return key(a) < key(b);
}

}  // namespace

std::unique_ptr<ElfObject> ElfObject::read(std::unique_ptr<const ByteSource> source) {
  std::unique_ptr<ElfObject> object(new ElfObject(std::move(source)));
  return object->parse() ? std::move(object) : nullptr;
}

bool ElfObject::parse() {
  Elf64_Ehdr header;
  if (!read_elf_header(*source_, header)) return false;
  std::vector<Elf64_Shdr> sections;
  Elf64_Shdr first{};
  if (header.e_shoff != 0 && header.e_shentsize == sizeof first &&
      read_one(*source_, header.e_shoff, first)) {
    // Larger numbers stand in the first section.
    const std::uint64_t count = header.e_shnum != 0 ? header.e_shnum : first.sh_size;
    const std::uint64_t names = header.e_shstrndx != SHN_XINDEX ? header.e_shstrndx : first.sh_link;
    std::vector<char> texts;
    if (count <= kMaxSections && read_some(*source_, header.e_shoff, count, sections) &&
        names < count && sections[names].sh_size <= kMaxSectionNames) {
      read_some(*source_, sections[names].sh_offset, sections[names].sh_size, texts);
    }
    for (const Elf64_Shdr& s : sections) {
      sections_.push_back({text_at(texts, s.sh_name), s.sh_type, s.sh_link, s.sh_flags, s.sh_addr,
                           s.sh_offset, s.sh_size});
      if (s.sh_type == SHT_NOTE && build_id_.empty()) {
        build_id_ = build_id_in(*source_, s.sh_offset, s.sh_size, s.sh_addralign);
      }
    }
  }
  std::vector<Elf64_Phdr> segments;
  if (build_id_.empty() && header.e_phentsize == sizeof(Elf64_Phdr) &&
      header.e_phnum <= kMaxSegments &&
      read_some(*source_, header.e_phoff, header.e_phnum, segments)) {
    for (const Elf64_Phdr& p : segments) {
      if (p.p_type != PT_NOTE || !build_id_.empty()) continue;
      build_id_ = build_id_in(*source_, p.p_offset, p.p_filesz, p.p_align);
    }
  }
  return true;
}

const ElfSection* ElfObject::find(std::string_view section) const {
  for (const ElfSection& s : sections_) {
    if (s.name == section && s.type != SHT_NOBITS) return &s;
  }
  return nullptr;
}

std::vector<std::byte> ElfObject::contents(std::string_view section, std::uint64_t limit) const {
  std::vector<std::byte> out;
  const ElfSection* s = find(section);
  if (s == nullptr || s->size > limit || !read_some(*source_, s->offset, s->size, out)) return {};
  return out;
}

std::optional<DebugLink> ElfObject::debug_link() const {
  const std::vector<std::byte> bytes = contents(".gnu_debuglink", kMaxName);
  if (bytes.empty()) return {};
  const char* text = reinterpret_cast<const char*>(bytes.data());
  const std::size_t length = strnlen(text, bytes.size());
  const std::size_t crc = (length + 4) & ~std::size_t{3};
  DebugLink link{{text, length}, 0};
  // A path would lead out of the folders that are searched.
  if (length == 0 || crc + sizeof link.crc > bytes.size() ||
      link.file_name.find('/') != std::string::npos) {
    return {};
  }
  std::memcpy(&link.crc, bytes.data() + crc, sizeof link.crc);
  return link;
}

bool ElfObject::has_debug_info() const {
  bool info = false, lines = false;
  for (const ElfSection& s : sections_) {
    if (!s.name.starts_with(".debug_") || s.type == SHT_NOBITS) continue;
    if (s.offset > source_->size() || s.size > source_->size() - s.offset) return false;
    info = info || (s.name == ".debug_info" && s.size > 0);
    lines = lines || (s.name == ".debug_line" && s.size > 0);
  }
  return info && lines;
}

SymbolTable::SymbolTable(const ElfObject& object, Kind kind) : object_(&object) {
  const std::uint32_t type = kind == Kind::kAll ? SHT_SYMTAB : SHT_DYNSYM;
  for (const ElfSection& section : object.sections()) {
    if (section.type != type) continue;
    load(section, kind);
    break;  // a file has one of each
  }
}

void SymbolTable::load(const ElfSection& section, Kind kind) {
  const std::vector<ElfSection>& sections = object_->sections();
  const ByteSource& source = object_->source();
  if (section.link >= sections.size() || section.offset > source.size()) return;
  strings_ = sections[section.link].offset;
  strings_size_ = sections[section.link].size;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> code;
  for (const ElfSection& s : sections) {
    if ((s.flags & SHF_EXECINSTR) == 0 || s.size == 0) continue;
    code.emplace_back(s.address, s.address + std::min(s.size, ~s.address));
  }
  std::sort(code.begin(), code.end());

  const std::uint64_t there = std::min(section.size, source.size() - section.offset);
  std::uint64_t left = std::min(there / sizeof(Elf64_Sym), kMaxSymbols);
  std::vector<Elf64_Sym> chunk;
  for (std::uint64_t at = section.offset; left > 0; at += chunk.size() * sizeof(Elf64_Sym)) {
    if (!read_some(source, at, std::min<std::uint64_t>(left, kChunk), chunk)) break;
    left -= chunk.size();
    for (const Elf64_Sym& symbol : chunk) {
      const unsigned symbol_type = ELF64_ST_TYPE(symbol.st_info);
      if (symbol.st_shndx == SHN_UNDEF || symbol.st_name == 0 ||
          (symbol_type != STT_FUNC && symbol_type != STT_GNU_IFUNC && symbol_type != STT_NOTYPE)) {
        continue;
      }
      auto range =
          std::upper_bound(code.begin(), code.end(), std::pair(symbol.st_value, ~std::uint64_t{0}));
      if (range == code.begin() || symbol.st_value >= (--range)->second) continue;
      const std::uint64_t room = range->second - symbol.st_value;
      if (symbol.st_size == 0 && kind == Kind::kExported) continue;
      // Without a size the end is found later; until then it is that of the section.
      const std::uint64_t size = symbol.st_size == 0 ? room : std::min(symbol.st_size, room);
      symbols_.push_back(
          {symbol.st_value, symbol.st_value + size, symbol.st_name, rank_of(symbol)});
    }
    if (symbols_.size() > kMaxFunctions) {
      symbols_.clear();
      return;
    }
  }
  std::sort(symbols_.begin(), symbols_.end(), [](const Symbol& a, const Symbol& b) {
    return std::tie(a.begin, a.rank, a.name) < std::tie(b.begin, b.rank, b.name);
  });
  if (kind == Kind::kAll) bound_those_without_size();
  make_segments();
}

// One without a size is as long as another of the same place, else it goes on to the next one.
void SymbolTable::bound_those_without_size() {
  for (std::size_t i = 0; i < symbols_.size();) {
    std::size_t next = i;
    std::uint64_t known_end = 0;
    for (; next < symbols_.size() && symbols_[next].begin == symbols_[i].begin; ++next) {
      if (is_sized(symbols_[next].rank)) known_end = std::max(known_end, symbols_[next].end);
    }
    for (std::size_t k = i; k < next; ++k) {
      Symbol& symbol = symbols_[k];
      if (is_sized(symbol.rank)) continue;
      if (known_end != 0) {
        symbol.end = known_end;
        continue;
      }
      symbol.end = std::min(symbol.end, symbol.begin + kMaxWithoutSize);
      if (next < symbols_.size()) symbol.end = std::min(symbol.end, symbols_[next].begin);
    }
    i = next;
  }
}

// Functions may lie in each other: the one that begins last holds, and behind its end the outer
// one.
void SymbolTable::make_segments() {
  struct Open {
    std::uint64_t end;
    std::uint32_t owner;
  };
  std::vector<Open> open;
  const auto put = [&](std::uint64_t begin, std::uint32_t owner) {
    if (!segments_.empty() && segments_.back().begin == begin) segments_.pop_back();
    segments_.push_back({begin, owner});
  };
  const auto close_until = [&](std::uint64_t address) {
    while (!open.empty() && open.back().end <= address) {
      const std::uint64_t end = open.back().end;
      while (!open.empty() && open.back().end <= end) open.pop_back();
      put(end, open.empty() ? kNone : open.back().owner);
    }
  };
  for (std::size_t i = 0; i < symbols_.size();) {
    const std::uint64_t begin = symbols_[i].begin;
    std::uint64_t end = begin;
    bool sized = false;
    std::size_t next = i;
    for (; next < symbols_.size() && symbols_[next].begin == begin; ++next) {
      end = std::max(end, symbols_[next].end);
      sized = sized || is_sized(symbols_[next].rank);
    }
    close_until(begin);
    if (sized || open.empty()) {  // else a label in a function
      open.push_back({end, static_cast<std::uint32_t>(i)});
      put(begin, static_cast<std::uint32_t>(i));
    }
    i = next;
  }
  close_until(std::numeric_limits<std::uint64_t>::max());
}

std::string SymbolTable::name_of(const Symbol& symbol) const {
  if (symbol.name >= strings_size_) return {};
  std::string out;
  std::array<char, 256> chunk;
  for (std::uint64_t at = symbol.name; out.size() < kMaxName; at += chunk.size()) {
    const std::size_t room = std::min<std::uint64_t>(chunk.size(), strings_size_ - at);
    const std::size_t got = object_->source().read(strings_ + at, chunk.data(), room);
    const std::size_t length = strnlen(chunk.data(), got);
    out.append(chunk.data(), length);
    if (length < chunk.size()) break;
  }
  const std::size_t version = out.find('@', 1);
  if (version != std::string::npos) out.resize(version);
  return out;
}

std::string SymbolTable::at(std::uint64_t address) const {
  auto segment =
      std::upper_bound(segments_.begin(), segments_.end(), address,
                       [](std::uint64_t value, const Segment& s) { return value < s.begin; });
  if (segment == segments_.begin() || (--segment)->owner == kNone) return {};
  std::string best;
  std::uint32_t rank = kNone;
  std::size_t compared = 0;
  const std::uint64_t begin = symbols_[segment->owner].begin;
  for (std::size_t i = segment->owner; i < symbols_.size() && symbols_[i].begin == begin; ++i) {
    const Symbol& symbol = symbols_[i];
    if (symbol.end <= address) continue;
    if (!best.empty() && (symbol.rank != rank || compared == kMaxAliases)) break;
    std::string name = name_of(symbol);
    ++compared;
    if (name.empty() || (!best.empty() && !is_plainer(name, best))) continue;
    best = std::move(name);
    rank = symbol.rank;
  }
  return best;
}

std::string_view whole_function(std::string_view linkage) {
  constexpr std::string_view kParts[] = {"cold",     "part",       "isra", "constprop",
                                         "lto_priv", "localalias", "llvm", "__uniq"};
  for (std::size_t dot = linkage.find('.', 1); dot != linkage.npos;
       dot = linkage.find('.', dot + 1)) {
    std::string_view word = linkage.substr(dot + 1);
    word = word.substr(0, word.find('.'));
    if (std::find(std::begin(kParts), std::end(kParts), word) != std::end(kParts)) {
      return linkage.substr(0, dot);
    }
  }
  return linkage;
}

}  // namespace gpubusy::analysis
