// SPDX-License-Identifier: Apache-2.0
//
// Interpreters that must not be read: of unknown versions, free-threaded, or with something else in
// memory than the version promises. None may crash, none may yield a frame.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <random>

#include "runtime/python/frames.hpp"
#include "runtime/python/optimizer.hpp"

#define PYTHON_API extern "C" __attribute__((visibility("default")))

namespace {
const char* version_text = "3.8.10 (default)";
void* thread_state = nullptr;
int initialized = 1;
}  // namespace

PYTHON_API const char* Py_GetVersion() { return version_text; }
PYTHON_API void* PyGILState_GetThisThreadState() { return thread_state; }
PYTHON_API int Py_IsInitialized() { return initialized; }
PYTHON_API int _Py_IsFinalizing() { return 0; }
PYTHON_API std::uint64_t PyCode_Type[8], PyUnicode_Type[8], PyBytes_Type[8], PyTuple_Type[8],
    _PyRuntime[512];
std::uint64_t PyCode_Type[8], PyUnicode_Type[8], PyBytes_Type[8], PyTuple_Type[8], _PyRuntime[512];

namespace gpubusy::runtime::python {
namespace {

struct FakePython : testing::Test {
  FakePython() {
    forget_for_test();
    initialized = 1;
    std::memset(memory_, 0, sizeof memory_);
    thread_state = memory_;
  }

  // The final state, asked as often as a program would.
  State decide() {
    State state = State::kNoInterpreter;
    for (int i = 0; i < 10; ++i) {
      state = probe().state;
      Frame frames[16];
      EXPECT_EQ(walk(frames, 16), 0);
      EXPECT_FALSE(current_optimizer_call());
    }
    return state;
  }

  alignas(16) std::uint64_t memory_[1024];
};

TEST_F(FakePython, UnknownVersions) {
  for (const char* text : {"3.7.3 (x)", "3.15.0a1", "3.99.1", "2.7.18", "4.0.0", "", "3", "3.x"}) {
    version_text = text;
    forget_for_test();
    EXPECT_EQ(decide(), State::kUnknownVersion) << text;
    EXPECT_STRNE(probe().text, "");
  }
}

TEST_F(FakePython, NotYet) {
  version_text = "3.11.4";
  initialized = 0;
  EXPECT_EQ(decide(), State::kNoInterpreter);
  initialized = 1;
  thread_state = nullptr;
  EXPECT_EQ(decide(), State::kNoInterpreter);
}

TEST_F(FakePython, FreeThreaded) {
  version_text = "3.13.1";
  std::memset(_PyRuntime, 0, sizeof _PyRuntime);
  std::memcpy(_PyRuntime, "xdebugpy", 8);
  _PyRuntime[2] = 1;
  EXPECT_EQ(decide(), State::kFreeThreaded);
  _PyRuntime[2] = 0;
  forget_for_test();
  EXPECT_EQ(decide(), State::kSelfCheckFailed) << "describes another layout";
  _PyRuntime[0] = 0;
  forget_for_test();
  EXPECT_EQ(decide(), State::kSelfCheckFailed) << "describes nothing";
}

TEST_F(FakePython, WildPointers) {
  void* hole = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  std::mt19937_64 random(11);
  for (const char* text : {"3.8.1", "3.9.1", "3.10.1", "3.11.1", "3.12.1"}) {
    version_text = text;
    for (int n = 0; n < 200; ++n) {
      for (std::uint64_t& word : memory_) {
        switch (random() % 6) {
          case 0: word = reinterpret_cast<std::uint64_t>(hole); break;
          case 1: word = random(); break;
          case 2: word = random() % 64; break;
          case 3: word = reinterpret_cast<std::uint64_t>(PyCode_Type); break;
          default: word = reinterpret_cast<std::uint64_t>(memory_ + random() % 900); break;
        }
      }
      forget_for_test();
      const State state = decide();
      EXPECT_TRUE(state == State::kSelfCheckFailed || state == State::kNoInterpreter) << text;
    }
    thread_state = hole;
    forget_for_test();
    EXPECT_EQ(decide(), State::kSelfCheckFailed);
    thread_state = memory_;
  }
  munmap(hole, 4096);
}

}  // namespace
}  // namespace gpubusy::runtime::python
