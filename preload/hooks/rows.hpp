// SPDX-License-Identifier: Apache-2.0
//
// How the rows of these tables stand for exported symbols. Macros only: whoever lists the symbols
// includes it, without the hooks themselves.
#pragma once

// One entry per exported symbol: EACH(symbol, category) is what a user defines.
#define GPUBUSY_ROW_P(EACH, symbol, category) EACH(symbol, category)
#define GPUBUSY_ROW_U(EACH, symbol, category) EACH(symbol, category)
#define GPUBUSY_ROW_Z(EACH, symbol, category) EACH(symbol, category) EACH(symbol##_ptsz, category)
#define GPUBUSY_ROW_ZU(EACH, symbol, category) EACH(symbol, category) EACH(symbol##_ptsz, category)
#define GPUBUSY_ROW_D(EACH, symbol, category) EACH(symbol, category) EACH(symbol##_ptds, category)
