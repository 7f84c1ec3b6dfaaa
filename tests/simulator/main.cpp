// SPDX-License-Identifier: Apache-2.0
//
// Runs the tests of the simulated device. They compare host times, which are wrong where the test
// was kept off the processor: a test that fails meanwhile is run again, by itself in a process made
// anew, and one that fails with a processor of its own has failed. How often, and why, is printed.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace {

constexpr const char* kAttempt = "SIM_TEST_ATTEMPT";
constexpr int kMostAttempts = 12;
constexpr std::uint64_t kKeptOffNs = 500'000;  // together; kernels here take 0.1 to 10 ms

// What the threads of this process waited for a processor, and what a hypervisor took from those of
// this machine. ns.
std::uint64_t kept_off_ns() {
  std::uint64_t sum = 0, ran = 0, waited = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator thread("/proc/self/task", error), end;
       !error && thread != end; thread.increment(error)) {
    std::FILE* file = std::fopen((thread->path() / "schedstat").c_str(), "r");
    if (file == nullptr) continue;
    if (std::fscanf(file, "%" SCNu64 " %" SCNu64, &ran, &waited) == 2) sum += waited;
    std::fclose(file);
  }
  if (std::FILE* file = std::fopen("/proc/stat", "r")) {
    std::uint64_t steal = 0;
    if (std::fscanf(file, "cpu %*u %*u %*u %*u %*u %*u %*u %" SCNu64, &steal) == 1) {
      sum += steal * (1'000'000'000u / static_cast<std::uint64_t>(sysconf(_SC_CLK_TCK)));
    }
    std::fclose(file);
  }
  return sum;
}

class Watch : public testing::EmptyTestEventListener {
 public:
  std::string again;        // a filter of the tests that failed while kept off
  bool has_failed = false;  // one failed, though it was not
  int times = 0;

 private:
  void OnTestStart(const testing::TestInfo&) override { begin_ = kept_off_ns(); }
  void OnTestEnd(const testing::TestInfo& test) override {
    if (!test.result()->Failed()) return;
    const std::uint64_t ns = kept_off_ns() - begin_;
    if (ns < kKeptOffNs) {
      has_failed = true;
      return;
    }
    ++times;
    std::printf("%s.%s was kept off the processor for %.1f ms\n", test.test_suite_name(),
                test.name(), static_cast<double>(ns) / 1e6);
    again += (again.empty() ? "" : ":") + std::string(test.test_suite_name()) + "." + test.name();
  }
  std::uint64_t begin_ = 0;
};

}  // namespace

int main(int count, char** arguments) {
  testing::InitGoogleTest(&count, arguments);
  auto* watch = new Watch;
  testing::UnitTest::GetInstance()->listeners().Append(watch);
  const int result = RUN_ALL_TESTS();
  const char* text = std::getenv(kAttempt);
  const int attempt = text == nullptr ? 1 : std::atoi(text);
  if (result == 0 || watch->has_failed || watch->again.empty() || attempt >= kMostAttempts) {
    return result;
  }
  std::printf(
      "attempt %d: %d tests failed while other programs had the processor; they run again\n",
      attempt, watch->times);
  std::fflush(stdout);
  setenv(kAttempt, std::to_string(attempt + 1).c_str(), 1);
  const std::string filter = "--gtest_filter=" + watch->again;
  execl(arguments[0], arguments[0], filter.c_str(), static_cast<char*>(nullptr));
  std::perror("execl");
  return 1;
}
