// SPDX-License-Identifier: Apache-2.0
#include <vector_types.h>

extern "C" {
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*,
                            dim3*, int*) {}
void __cudaUnregisterFatBinary(void**) {}
}
