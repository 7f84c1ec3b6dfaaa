// SPDX-License-Identifier: Apache-2.0
extern "C" int plug_answer() { return 42; }
