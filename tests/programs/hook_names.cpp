// SPDX-License-Identifier: Apache-2.0
//
// Prints the exported names of the hook table, straight from its rows, to compare with nm -D; and
// dlclose, which is exported to notice that real functions go.
#include <cstdio>

int main() {
#define EACH(symbol) std::puts(#symbol);
#define ROW_P(symbol) EACH(symbol)
#define ROW_U(symbol) EACH(symbol)
#define ROW_Z(symbol) EACH(symbol) EACH(symbol##_ptsz)
#define ROW_ZU(symbol) EACH(symbol) EACH(symbol##_ptsz)
#define ROW_D(symbol) EACH(symbol) EACH(symbol##_ptds)
#define HOOK(variants, symbol, ...) ROW_##variants(symbol)
#define LAUNCH(variants, symbol, ...) ROW_##variants(symbol)
#define OWN(symbol, category) EACH(symbol)
#include "preload/hooks/cuda_driver.def"
#include "preload/hooks/cuda_runtime.def"
#include "preload/hooks/cupti.def"
#define LIBRARY(library, symbol, ...) EACH(symbol)
#include "preload/hooks/libraries.def"
  EACH(dlclose)
}
