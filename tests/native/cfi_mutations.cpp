// SPDX-License-Identifier: Apache-2.0
//
// The reader of unwind tables on tables that somebody has broken: copies of those of the loaded
// libraries, in buffers of exactly their size, so that AddressSanitizer sees each read outside.
// Argument: rounds for each library.
#include <link.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "runtime/native/cfi.hpp"

namespace {

using gpubusy::runtime::native::find_rule;
using gpubusy::runtime::native::Image;
using gpubusy::runtime::native::Rule;
using gpubusy::runtime::native::RuleType;

struct Library {
  std::string path;
  Image image;
  std::uintptr_t text_begin = 0, text_end = 0;
};

std::vector<Library> libraries() {
  std::vector<Library> out;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        Library l;
        l.path = info->dlpi_name;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto& p = info->dlpi_phdr[i];
          const std::uintptr_t begin = info->dlpi_addr + p.p_vaddr;
          if (p.p_type == PT_GNU_EH_FRAME) l.image.header = begin;
          if (p.p_type != PT_LOAD) continue;
          if ((p.p_flags & PF_X) != 0) {
            l.text_begin = begin;
            l.text_end = begin + p.p_memsz;
          }
          l.image.ranges[l.image.range_count++] = {begin, begin + p.p_filesz};
        }
        if (l.image.header != 0) static_cast<std::vector<Library>*>(data)->push_back(l);
        return 0;
      },
      &out);
  return out;
}

template <class T>
T at(std::uintptr_t address) {
  T value;
  std::memcpy(&value, reinterpret_cast<const void*>(address), sizeof value);
  return value;
}

// Addresses of the function's own description and of what it shares with others.
std::pair<std::uintptr_t, std::uintptr_t> descriptions(std::uintptr_t header, std::uint32_t index) {
  const std::uintptr_t fde =
      header +
      static_cast<std::uintptr_t>(std::intptr_t{at<std::int32_t>(header + 12 + 8 * index + 4)});
  return {fde, fde + 4 - at<std::uint32_t>(fde + 4)};
}

}  // namespace

int main(int count, char** arguments) {
  const int rounds = count > 1 ? std::atoi(arguments[1]) : 20000;
  std::mt19937_64 random(count > 2 ? std::strtoull(arguments[2], nullptr, 0) : 1);
  long found = 0, none = 0, wrong = 0;
  for (const Library& library : libraries()) {
    const Image::Range* range = library.image.range_of(library.image.header);
    if (range == nullptr) continue;
    const std::size_t size = range->end - range->begin;
    // Every description is found again in an unbroken copy.
    std::unique_ptr<unsigned char[]> copy(new unsigned char[size]);
    // By the kernel: a sanitizer has its own mind of what may be read of a program.
    const iovec local{copy.get(), size}, remote{reinterpret_cast<void*>(range->begin), size};
    if (process_vm_readv(getpid(), &local, 1, &remote, 1, 0) != static_cast<ssize_t>(size))
      continue;
    const std::vector<unsigned char> original(copy.get(), copy.get() + size);
    const auto base = reinterpret_cast<std::uintptr_t>(copy.get());
    const auto moved = [&](std::uintptr_t a) { return a - range->begin + base; };
    Image image;
    image.header = moved(library.image.header);
    image.ranges[0] = {base, base + size};
    image.range_count = 1;
    const auto functions = at<std::uint32_t>(image.header + 8);
    long good = 0;
    for (std::uint32_t i = 0; i < functions; i += 1 + functions / 5000) {
      const std::uintptr_t pc =
          library.image.header +
          static_cast<std::uintptr_t>(std::intptr_t{at<std::int32_t>(image.header + 12 + 8 * i)});
      const Rule a = find_rule(library.image, pc), b = find_rule(image, moved(pc));
      if (std::memcmp(&a, &b, sizeof a) != 0) ++wrong;
      if (a.type != RuleType::kNone) ++good;
    }
    std::printf("%s: %u functions, %ld of those tried have a rule at their start\n",
                library.path.c_str(), functions, good);
    for (int round = 0; round < rounds; ++round) {
      const auto index = static_cast<std::uint32_t>(random() % functions);
      const auto [fde, cie] = descriptions(image.header, index);
      const std::uintptr_t pc =
          image.header + static_cast<std::uintptr_t>(
                             std::intptr_t{at<std::int32_t>(image.header + 12 + 8 * index)});
      struct Undo {
        unsigned char* place;
        unsigned char before;
      };
      std::vector<Undo> undo;
      const auto spoil = [&](std::uintptr_t address) {
        if (address < base || address >= base + size) return;
        auto* place = reinterpret_cast<unsigned char*>(address);
        undo.push_back({place, *place});
        switch (random() % 4) {
          case 0: *place = static_cast<unsigned char>(random()); break;
          case 1: *place ^= static_cast<unsigned char>(1u << random() % 8); break;
          case 2: *place = 0xff; break;
          default: *place = random() % 2 == 0 ? 0x80 : 0; break;
        }
      };
      for (std::uint64_t i = 0; i <= random() % 4; ++i) {
        switch (random() % 8) {
          case 0: spoil(image.header + random() % 12); break;
          case 1: spoil(image.header + 12 + 8 * index + random() % 8); break;
          case 2:
          case 3: spoil(cie + random() % 28); break;
          default: spoil(fde + random() % 48); break;
        }
      }
      // Sometimes less of it is there.
      Image part = image;
      if (random() % 16 == 0) {
        const std::uintptr_t ends[] = {fde, cie, image.header};
        part.ranges[0].end = std::min(base + size, ends[random() % 3] + random() % 40);
      }
      for (std::uint64_t offset : {std::uint64_t{0}, random() % 64, random() % 4096}) {
        (find_rule(part, pc + offset).type == RuleType::kNone ? none : found) += 1;
      }
      for (auto u = undo.rbegin(); u != undo.rend(); ++u) *u->place = u->before;
    }
    if (std::memcmp(copy.get(), original.data(), size) != 0) ++wrong;
  }
  std::printf("%ld rules, %ld times none, %ld wrong\n", found, none, wrong);
  return wrong == 0 && found > 0 && none > 0 ? 0 : 1;
}
