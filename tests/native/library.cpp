// SPDX-License-Identifier: Apache-2.0
// Built twice, with frames of another size but code of the same: what is at the same address then
// needs another rule.
extern "C" [[gnu::visibility("default")]] void gpubusy_test_call(void (*callback)()) {
  volatile char frame[GPUBUSY_TEST_FRAME];
  for (unsigned i = 0; i < 256; ++i) frame[i] = 17;
  callback();
  frame[1] = frame[2];
}
