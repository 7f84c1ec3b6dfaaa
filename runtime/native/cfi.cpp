// SPDX-License-Identifier: Apache-2.0
#include "runtime/native/cfi.hpp"

#include <cstddef>
#include <cstring>

namespace gpubusy::runtime::native {
namespace {

// DWARF numbers of the registers that are followed.
constexpr std::uint64_t kFp = 6, kSp = 7, kPc = 16;
constexpr std::int64_t kWord = 8;

// Bytes of a table. Past the end, or after fail(), reads give 0 and everything is "at the end".
class Bytes {
 public:
  Bytes(std::uintptr_t begin, std::uintptr_t end) noexcept : at_(begin), end_(end) {}

  bool ok() const noexcept { return ok_; }
  bool more() const noexcept { return at_ < end_; }
  std::uintptr_t at() const noexcept { return at_; }
  std::uint64_t left() const noexcept { return end_ - at_; }
  void fail() noexcept {
    ok_ = false;
    at_ = end_;
  }

  template <class T>
  T take() noexcept {
    T value{};
    if (left() < sizeof value) {
      fail();
    } else {
      std::memcpy(&value, reinterpret_cast<const void*>(at_), sizeof value);
      at_ += sizeof value;
    }
    return value;
  }
  void skip(std::uint64_t count) noexcept {
    if (left() < count) return fail();
    at_ += count;
  }
  // The next bytes as a table of their own.
  Bytes part(std::uint64_t count) noexcept {
    const std::uintptr_t begin = at_;
    skip(count);
    Bytes bytes(begin, at_);
    if (!ok_) bytes.fail();
    return bytes;
  }
  std::uint64_t uleb() noexcept {
    std::uint64_t value = 0;
    for (unsigned shift = 0;; shift += 7) {
      const auto byte = take<std::uint8_t>();
      if (shift < 64) value |= std::uint64_t{byte & 0x7fu} << shift;
      if ((byte & 0x80) == 0) return value;
    }
  }
  std::int64_t sleb() noexcept {
    std::uint64_t value = 0;
    for (unsigned shift = 0;;) {
      const auto byte = take<std::uint8_t>();
      if (shift < 64) value |= std::uint64_t{byte & 0x7fu} << shift;
      shift += 7;
      if ((byte & 0x80) != 0) continue;
      if (shift < 64 && (byte & 0x40) != 0) value |= ~std::uint64_t{0} << shift;
      return static_cast<std::int64_t>(value);
    }
  }
  // A pointer in one of the DW_EH_PE encodings. What is relative to something else than itself or
  // `data` is not in use on this architecture.
  std::uint64_t pointer(std::uint8_t encoding, std::uintptr_t data) noexcept {
    constexpr std::uint8_t kOmitted = 0xff, kIndirect = 0x80;
    if (encoding == kOmitted || (encoding & kIndirect) != 0) {
      fail();
      return 0;
    }
    std::uint64_t base = 0;
    switch (encoding & 0x70) {
      case 0x00: break;
      case 0x10: base = at_; break;
      case 0x30: base = data; break;
      default: fail(); return 0;
    }
    switch (encoding & 0x0f) {
      case 0x00: return base + take<std::uint64_t>();
      case 0x01: return base + uleb();
      case 0x02: return base + take<std::uint16_t>();
      case 0x03: return base + take<std::uint32_t>();
      case 0x04: return base + take<std::uint64_t>();
      case 0x09: return base + static_cast<std::uint64_t>(sleb());
      case 0x0a: return base + static_cast<std::uint64_t>(std::int64_t{take<std::int16_t>()});
      case 0x0b: return base + static_cast<std::uint64_t>(std::int64_t{take<std::int32_t>()});
      case 0x0c: return base + take<std::uint64_t>();
      default: fail(); return 0;
    }
  }

 private:
  std::uintptr_t at_, end_;
  bool ok_ = true;
};

// Wraps instead of overflowing: the numbers may be anything.
std::int64_t add(std::int64_t a, std::int64_t b) noexcept {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}
std::int64_t times(std::uint64_t a, std::int64_t b) noexcept {
  return static_cast<std::int64_t>(a * static_cast<std::uint64_t>(b));
}

// ---- expressions -------------------------------------------------------------------------------

// What an expression gives, as far as it can be said without the frame: base + offset, or the word
// that is there, + after.
struct Term {
  enum Base : std::uint8_t { kNumber, kOfSp, kOfFp, kOfCfa } base = kNumber;
  bool loaded = false;
  std::int64_t offset = 0;
  std::int64_t after = 0;

  bool is_number() const noexcept { return base == kNumber && !loaded; }
  void move(std::int64_t by) noexcept {
    std::int64_t& place = loaded ? after : offset;
    place = add(place, by);
  }
};

// pc is a number here, since a rule is made for one pc: so the PLT's "which instruction of the stub
// is this" is worked out now.
bool evaluate(Bytes code, std::uintptr_t pc, bool with_cfa, Term& result) noexcept {
  constexpr int kDepth = 8;
  Term stack[kDepth];
  int depth = 0;
  if (with_cfa) stack[depth++].base = Term::kOfCfa;
  const auto push = [&](const Term& term) noexcept {
    if (depth == kDepth) return false;
    stack[depth++] = term;
    return true;
  };
  const auto push_number = [&](std::int64_t n) noexcept {
    return push({Term::kNumber, false, n, 0});
  };
  while (code.more()) {
    const auto op = code.take<std::uint8_t>();
    bool good = true;
    if (op >= 0x30 && op <= 0x4f) {  // lit0…31
      good = push_number(op - 0x30);
    } else if ((op >= 0x70 && op <= 0x8f) || op == 0x92) {  // breg0…31, bregx
      const std::uint64_t reg = op == 0x92 ? code.uleb() : op - 0x70u;
      const std::int64_t offset = code.sleb();
      if (reg == kPc) {
        good = push_number(add(static_cast<std::int64_t>(pc), offset));
      } else {
        good = (reg == kFp || reg == kSp) &&
               push({reg == kSp ? Term::kOfSp : Term::kOfFp, false, offset, 0});
      }
    } else {
      switch (op) {
        case 0x03: good = push_number(code.take<std::int64_t>()); break;  // addr
        case 0x08: good = push_number(code.take<std::uint8_t>()); break;
        case 0x09: good = push_number(code.take<std::int8_t>()); break;
        case 0x0a: good = push_number(code.take<std::uint16_t>()); break;
        case 0x0b: good = push_number(code.take<std::int16_t>()); break;
        case 0x0c: good = push_number(code.take<std::uint32_t>()); break;
        case 0x0d: good = push_number(code.take<std::int32_t>()); break;
        case 0x0e: good = push_number(code.take<std::int64_t>()); break;
        case 0x0f: good = push_number(code.take<std::int64_t>()); break;
        case 0x10: good = push_number(static_cast<std::int64_t>(code.uleb())); break;
        case 0x11: good = push_number(code.sleb()); break;
        case 0x96: break;  // nop
        case 0x06: {       // deref
          good = depth > 0 && !stack[depth - 1].loaded && !stack[depth - 1].is_number();
          if (good) stack[depth - 1].loaded = true;
          break;
        }
        case 0x23: {  // plus_uconst
          const std::uint64_t by = code.uleb();
          good = depth > 0;
          if (good) stack[depth - 1].move(static_cast<std::int64_t>(by));
          break;
        }
        default: {  // two operands
          if (depth < 2) return false;
          const Term b = stack[--depth];
          Term& a = stack[depth - 1];
          if (op == 0x22) {  // plus: one of them must be a number
            if (b.is_number()) {
              a.move(b.offset);
            } else if (a.is_number()) {
              const std::int64_t by = a.offset;
              a = b;
              a.move(by);
            } else {
              return false;
            }
            break;
          }
          if (!b.is_number()) return false;
          if (op == 0x1c) {  // minus
            a.move(static_cast<std::int64_t>(-static_cast<std::uint64_t>(b.offset)));
            break;
          }
          if (!a.is_number()) return false;
          const std::int64_t x = a.offset, y = b.offset;
          switch (op) {
            case 0x1a: a.offset = x & y; break;
            case 0x21: a.offset = x | y; break;
            case 0x27: a.offset = x ^ y; break;
            case 0x1e: a.offset = times(static_cast<std::uint64_t>(x), y); break;
            case 0x24:  // shl
              a.offset = y < 0 || y > 63
                             ? 0
                             : static_cast<std::int64_t>(static_cast<std::uint64_t>(x) << y);
              break;
            case 0x25:  // shr
              a.offset = y < 0 || y > 63
                             ? 0
                             : static_cast<std::int64_t>(static_cast<std::uint64_t>(x) >> y);
              break;
            case 0x29: a.offset = x == y; break;
            case 0x2a: a.offset = x >= y; break;
            case 0x2b: a.offset = x > y; break;
            case 0x2c: a.offset = x <= y; break;
            case 0x2d: a.offset = x < y; break;
            case 0x2e: a.offset = x != y; break;
            default: return false;
          }
        }
      }
    }
    if (!good || !code.ok()) return false;
  }
  if (!code.ok() || depth == 0) return false;
  result = stack[depth - 1];
  return true;
}

// ---- a row of the table ------------------------------------------------------------------------

// How to find the caller's value of a register.
struct Place {
  enum Kind : std::uint8_t { kSame, kAtCfa, kAtExpression, kUndefined, kOther } kind = kSame;
  std::int64_t offset = 0;
  Bytes expression{0, 0};
};

struct Row {
  bool by_expression = false;
  std::uint64_t cfa_register = 0;
  std::int64_t cfa_offset = 0;
  Bytes cfa_expression{0, 0};
  Place fp, pc;

  Place* place(std::uint64_t reg) noexcept { return reg == kFp ? &fp : reg == kPc ? &pc : nullptr; }
};

struct Cie {
  std::uint64_t code_factor = 0;
  std::int64_t data_factor = 0;
  std::uint8_t pointer_encoding = 0;
  bool has_data = false, is_signal_frame = false;
  Bytes instructions{0, 0};
};

// Runs instructions until the row of `pc` is complete.
bool run(Bytes code, const Cie& cie, std::uintptr_t location, std::uintptr_t pc, const Row& initial,
         Row& row) noexcept {
  constexpr int kSaved = 8;
  Row saved[kSaved];
  int saved_count = 0;
  const auto set = [&](std::uint64_t reg, Place::Kind kind, std::int64_t offset) noexcept {
    if (Place* place = row.place(reg)) *place = {kind, offset, Bytes(0, 0)};
  };
  const auto at_expression = [&](std::uint64_t reg) noexcept {
    const Bytes expression = code.part(code.uleb());
    if (Place* place = row.place(reg)) *place = {Place::kAtExpression, 0, expression};
  };
  const auto restore = [&](std::uint64_t reg) noexcept {
    if (reg == kFp) row.fp = initial.fp;
    if (reg == kPc) row.pc = initial.pc;
  };
  const auto define_cfa = [&](std::uint64_t reg, std::int64_t offset) noexcept {
    row.by_expression = false;
    row.cfa_register = reg;
    row.cfa_offset = offset;
  };
  while (code.more()) {
    const auto op = code.take<std::uint8_t>();
    const std::uint8_t low = op & 0x3f;
    std::uint64_t advance = 0;
    switch (op & 0xc0) {
      case 0x40: advance = low * cie.code_factor; break;
      case 0x80: set(low, Place::kAtCfa, times(code.uleb(), cie.data_factor)); break;
      case 0xc0: restore(low); break;
      default:
        switch (op) {
          case 0x00: break;  // nop
          case 0x01: {       // set_loc
            const std::uint64_t to = code.pointer(cie.pointer_encoding, 0);
            if (to > pc) return code.ok();
            location = to;
            break;
          }
          case 0x02: advance = code.take<std::uint8_t>() * cie.code_factor; break;
          case 0x03: advance = code.take<std::uint16_t>() * cie.code_factor; break;
          case 0x04: advance = code.take<std::uint32_t>() * cie.code_factor; break;
          case 0x05: {  // offset_extended
            const std::uint64_t reg = code.uleb();
            set(reg, Place::kAtCfa, times(code.uleb(), cie.data_factor));
            break;
          }
          case 0x06: restore(code.uleb()); break;
          case 0x07: set(code.uleb(), Place::kUndefined, 0); break;
          case 0x08: set(code.uleb(), Place::kSame, 0); break;
          case 0x09: {  // register
            const std::uint64_t reg = code.uleb();
            code.uleb();
            set(reg, Place::kOther, 0);
            break;
          }
          case 0x0a:  // remember_state
            if (saved_count == kSaved) return false;
            saved[saved_count++] = row;
            break;
          case 0x0b:  // restore_state
            if (saved_count == 0) return false;
            row = saved[--saved_count];
            break;
          case 0x0c: {  // def_cfa
            const std::uint64_t reg = code.uleb();
            define_cfa(reg, static_cast<std::int64_t>(code.uleb()));
            break;
          }
          case 0x0d: define_cfa(code.uleb(), row.cfa_offset); break;
          case 0x0e: row.cfa_offset = static_cast<std::int64_t>(code.uleb()); break;
          case 0x0f:  // def_cfa_expression
            row.by_expression = true;
            row.cfa_expression = code.part(code.uleb());
            break;
          case 0x10: at_expression(code.uleb()); break;
          case 0x11: {  // offset_extended_sf
            const std::uint64_t reg = code.uleb();
            set(reg, Place::kAtCfa,
                times(static_cast<std::uint64_t>(code.sleb()), cie.data_factor));
            break;
          }
          case 0x12: {  // def_cfa_sf
            const std::uint64_t reg = code.uleb();
            define_cfa(reg, times(static_cast<std::uint64_t>(code.sleb()), cie.data_factor));
            break;
          }
          case 0x13:
            row.cfa_offset = times(static_cast<std::uint64_t>(code.sleb()), cie.data_factor);
            break;
          case 0x14:    // val_offset
          case 0x15: {  // val_offset_sf
            const std::uint64_t reg = code.uleb();
            code.uleb();
            set(reg, Place::kOther, 0);
            break;
          }
          case 0x16: {  // val_expression
            const std::uint64_t reg = code.uleb();
            code.skip(code.uleb());
            set(reg, Place::kOther, 0);
            break;
          }
          case 0x2e: code.uleb(); break;  // GNU_args_size
          case 0x2f: {                    // GNU_negative_offset_extended
            const std::uint64_t reg = code.uleb();
            set(reg, Place::kAtCfa, times(-code.uleb(), cie.data_factor));
            break;
          }
          default: return false;
        }
    }
    if (!code.ok()) return false;
    if (advance > pc - location) return true;
    location += advance;
  }
  return code.ok();
}

bool read_cie(const Image& image, std::uintptr_t address, Cie& cie) noexcept {
  const Image::Range* range = image.range_of(address);
  if (range == nullptr) return false;
  Bytes bytes(address, range->end);
  const auto length = bytes.take<std::uint32_t>();
  if (length == 0xffffffff) return false;  // 64-bit DWARF: nobody emits it here
  bytes = bytes.part(length);
  if (bytes.take<std::uint32_t>() != 0) return false;
  const auto version = bytes.take<std::uint8_t>();
  if (version != 1 && version != 3) return false;
  char augmentation[8] = {};
  std::size_t count = 0;
  while (const char c = bytes.take<char>()) {
    if (count == sizeof augmentation - 1) return false;
    augmentation[count++] = c;
  }
  cie.code_factor = bytes.uleb();
  cie.data_factor = bytes.sleb();
  const std::uint64_t return_register = version == 1 ? bytes.take<std::uint8_t>() : bytes.uleb();
  if (return_register != kPc) return false;
  if (augmentation[0] == 'z') {
    cie.has_data = true;
    Bytes data = bytes.part(bytes.uleb());
    for (const char* a = augmentation + 1; *a != '\0'; ++a) {
      switch (*a) {
        case 'R': cie.pointer_encoding = data.take<std::uint8_t>(); break;
        case 'L': data.take<std::uint8_t>(); break;
        case 'S': cie.is_signal_frame = true; break;
        case 'P': {
          constexpr std::uint8_t kNotIndirect = 0x7f;
          const auto encoding = static_cast<std::uint8_t>(data.take<std::uint8_t>() & kNotIndirect);
          data.pointer(encoding, 0);
          break;
        }
        default: return false;  // may change what the rest means
      }
    }
    if (!data.ok()) return false;
  } else if (augmentation[0] != '\0') {
    return false;
  }
  cie.instructions = bytes;
  return bytes.ok();
}

// Where in the object the description of the function at pc may be; 0: nowhere.
std::uintptr_t search_table(const Image& image, std::uintptr_t pc) noexcept {
  const Image::Range* range = image.range_of(image.header);
  if (range == nullptr) return 0;
  Bytes bytes(image.header, range->end);
  const auto version = bytes.take<std::uint8_t>();
  const auto frame_encoding = bytes.take<std::uint8_t>();
  const auto count_encoding = bytes.take<std::uint8_t>();
  const auto table_encoding = bytes.take<std::uint8_t>();
  constexpr std::uint8_t kDataRelative4 = 0x3b;  // the only one that linkers write
  if (version != 1 || table_encoding != kDataRelative4) return 0;
  bytes.pointer(frame_encoding, image.header);
  const std::uint64_t count = bytes.pointer(count_encoding, image.header);
  struct Entry {
    std::int32_t function, description;  // from the header
  };
  if (!bytes.ok() || count == 0 || count > bytes.left() / sizeof(Entry)) return 0;
  const auto entry = [&](std::uint64_t i) noexcept {
    Entry e;
    std::memcpy(&e, reinterpret_cast<const void*>(bytes.at() + i * sizeof e), sizeof e);
    return e;
  };
  const auto relative = static_cast<std::int64_t>(pc - image.header);
  if (relative < entry(0).function) return 0;
  std::uint64_t low = 0, high = count;
  while (high - low > 1) {
    const std::uint64_t middle = low + (high - low) / 2;
    (entry(middle).function <= relative ? low : high) = middle;
  }
  return image.header + static_cast<std::uintptr_t>(std::intptr_t{entry(low).description});
}

bool fits(std::int64_t value, int bits) noexcept {
  const std::int64_t limit = std::int64_t{1} << (bits - 1);
  return value >= -limit && value < limit;
}

bool describe_fp(const Row& row, std::uintptr_t pc, Rule& rule) noexcept {
  std::int64_t offset = 0;
  switch (row.fp.kind) {
    case Place::kSame: rule.fp = SavedFp::kSame; return true;
    case Place::kUndefined:
    case Place::kOther: rule.fp = SavedFp::kLost; return true;
    case Place::kAtCfa:
      rule.fp = SavedFp::kAtCfa;
      offset = row.fp.offset;
      break;
    case Place::kAtExpression: {
      Term term;
      if (!evaluate(row.fp.expression, pc, true, term) || term.loaded ||
          (term.base != Term::kOfCfa && term.base != Term::kOfFp)) {
        rule.fp = SavedFp::kLost;
        return true;
      }
      rule.fp = term.base == Term::kOfCfa ? SavedFp::kAtCfa : SavedFp::kAtFp;
      offset = term.offset;
    }
  }
  if (!fits(offset, 16)) {
    rule.fp = SavedFp::kLost;
    return true;
  }
  rule.fp_offset = static_cast<std::int16_t>(offset);
  return true;
}

// The handler's return address leads into libc's restorer. Its description names each register's
// place in the context that the kernel has pushed.
bool describe_signal_frame(const Row& row, std::uintptr_t pc, Rule& rule) noexcept {
  Term cfa, caller, fp;
  if (!row.by_expression || row.pc.kind != Place::kAtExpression ||
      row.fp.kind != Place::kAtExpression || !evaluate(row.cfa_expression, pc, false, cfa) ||
      !evaluate(row.pc.expression, pc, true, caller) ||
      !evaluate(row.fp.expression, pc, true, fp)) {
    return false;
  }
  if (cfa.base != Term::kOfSp || !cfa.loaded || cfa.after != 0 || caller.base != Term::kOfSp ||
      caller.loaded || caller.offset != add(cfa.offset, kSignalPc) || fp.base != Term::kOfSp ||
      fp.loaded || fp.offset != add(cfa.offset, kSignalFp) || !fits(cfa.offset, 16)) {
    return false;
  }
  rule.type = RuleType::kSignal;
  rule.cfa_offset = static_cast<std::int32_t>(cfa.offset);
  return true;
}

bool describe_cfa(const Row& row, std::uintptr_t pc, Rule& rule) noexcept {
  Term cfa;
  if (row.by_expression) {
    if (!evaluate(row.cfa_expression, pc, false, cfa)) return false;
  } else {
    if (row.cfa_register != kSp && row.cfa_register != kFp) return false;
    cfa.base = row.cfa_register == kSp ? Term::kOfSp : Term::kOfFp;
    cfa.offset = row.cfa_offset;
  }
  if (cfa.base != Term::kOfSp && cfa.base != Term::kOfFp) return false;
  constexpr std::int64_t kMaxWords = 15;
  if (!fits(cfa.offset, 28) || cfa.after < 0 || cfa.after > kMaxWords * kWord ||
      cfa.after % kWord != 0) {
    return false;
  }
  const bool of_sp = cfa.base == Term::kOfSp;
  rule.type = cfa.loaded ? (of_sp ? RuleType::kLoadedFromSp : RuleType::kLoadedFromFp)
                         : (of_sp ? RuleType::kFromSp : RuleType::kFromFp);
  rule.cfa_offset = static_cast<std::int32_t>(cfa.offset);
  rule.add_words = static_cast<std::uint32_t>(cfa.after / kWord);
  return true;
}

// What the object says of the function at pc. False: nothing, or nothing that we know how to read.
struct Description {
  CodeSpan span;
  Cie cie;
  Bytes instructions{0, 0};
};
bool find_description(const Image& image, std::uintptr_t pc, Description& found) noexcept {
  const std::uintptr_t at = search_table(image, pc);
  const Image::Range* range = image.range_of(at);
  if (range == nullptr) return false;
  Bytes bytes(at, range->end);
  const auto length = bytes.take<std::uint32_t>();
  if (length == 0 || length == 0xffffffff) return false;
  bytes = bytes.part(length);
  const std::uintptr_t id_at = bytes.at();
  const auto id = bytes.take<std::uint32_t>();
  Cie& cie = found.cie;
  if (!bytes.ok() || id == 0 || !read_cie(image, id_at - id, cie)) return false;
  const std::uintptr_t begin = bytes.pointer(cie.pointer_encoding, 0);
  constexpr std::uint8_t kOnlyFormat = 0x0f;
  const std::uint64_t size = bytes.pointer(cie.pointer_encoding & kOnlyFormat, 0);
  if (!bytes.ok() || pc < begin || pc - begin >= size) return false;
  if (cie.has_data) bytes.skip(bytes.uleb());
  found.span = {begin, begin + size};
  found.instructions = bytes;
  return true;
}

}  // namespace

CodeSpan find_span(const Image& image, std::uintptr_t pc) noexcept {
  Description found;
  return find_description(image, pc, found) ? found.span : CodeSpan{};
}

Rule find_rule(const Image& image, std::uintptr_t pc) noexcept {
  constexpr Rule kNoRule{};
  if constexpr (!kSupported) return kNoRule;
  Description found;
  if (!find_description(image, pc, found)) return kNoRule;
  const Cie& cie = found.cie;
  const std::uintptr_t begin = found.span.begin;
  Bytes bytes = found.instructions;

  Row row;
  row.pc.kind = Place::kOther;  // until the CIE says where it is
  const std::uintptr_t kAll = ~std::uintptr_t{0};
  if (!run(cie.instructions, cie, 0, kAll, row, row)) return kNoRule;
  const Row initial = row;
  if (!run(bytes, cie, begin, pc, initial, row)) return kNoRule;

  Rule rule;
  if (row.pc.kind == Place::kUndefined) {
    rule.type = RuleType::kOutermost;
    return rule;
  }
  if (cie.is_signal_frame) return describe_signal_frame(row, pc, rule) ? rule : kNoRule;
  if (row.pc.kind != Place::kAtCfa || row.pc.offset != -kWord) return kNoRule;
  return describe_fp(row, pc, rule) && describe_cfa(row, pc, rule) ? rule : kNoRule;
}

}  // namespace gpubusy::runtime::native
