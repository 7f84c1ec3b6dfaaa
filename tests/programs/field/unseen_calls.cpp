// SPDX-License-Identifier: Apache-2.0
//
// Calls the driver by addresses that no interposition can see: found by its own reading of the
// library's symbol table, as protected binaries do. Prints what the calls returned.
#include <elf.h>
#include <link.h>

#include <dlfcn.h>

#include <cstdio>
#include <cstring>

namespace {

struct Wanted {
  const char* name;
  void* address;
};

int look(dl_phdr_info* info, size_t, void* data) {
  auto& wanted = *static_cast<Wanted*>(data);
  if (std::strstr(info->dlpi_name, "libcuda.so") == nullptr) return 0;
  const ElfW(Sym)* symbols = nullptr;
  const char* strings = nullptr;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    if (info->dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
    const auto* d =
        reinterpret_cast<const ElfW(Dyn)*>(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
    for (; d->d_tag != DT_NULL; ++d) {
      if (d->d_tag == DT_SYMTAB) symbols = reinterpret_cast<const ElfW(Sym)*>(d->d_un.d_ptr);
      if (d->d_tag == DT_STRTAB) strings = reinterpret_cast<const char*>(d->d_un.d_ptr);
    }
  }
  // The string table follows the symbols, with every linker that builds our test drivers.
  for (const ElfW(Sym)* s = symbols; reinterpret_cast<const char*>(s) < strings; ++s) {
    if (s->st_value != 0 && std::strcmp(strings + s->st_name, wanted.name) == 0) {
      wanted.address = reinterpret_cast<void*>(info->dlpi_addr + s->st_value);
      return 1;
    }
  }
  return 0;
}

}  // namespace

int main() {
  if (dlopen("libcuda.so.1", RTLD_NOW) == nullptr) return 3;
  Wanted wanted{"cuMemAlloc_v2", nullptr};
  dl_iterate_phdr(look, &wanted);
  if (wanted.address == nullptr) return 4;
  unsigned long long memory = 0;
  auto* alloc = reinterpret_cast<int (*)(unsigned long long*, std::size_t)>(wanted.address);
  for (int i = 0; i < 5; ++i) std::printf("%d\n", alloc(&memory, 64));
}
