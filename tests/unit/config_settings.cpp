// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "config/config.hpp"

namespace gpubusy::config {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct Result {
  bool good;
  std::string problem;
};

Result load_from(Config& config, const std::vector<std::string>& entries) {
  std::vector<const char*> environment;
  for (const std::string& entry : entries) environment.push_back(entry.c_str());
  environment.push_back(nullptr);
  set_defaults(config);
  Problem problem{};
  const bool good = load(config, environment.data(), problem);
  return {good, good ? "" : problem.text};
}

const OptionInfo& option(const std::string& member) {
  for (std::size_t i = 0; i < kOptionCount; ++i) {
    if (member == kOptions[i].member) return kOptions[i];
  }
  ADD_FAILURE() << "no option " << member;
  return kOptions[0];
}

TEST(Settings, DefaultsAreThoseOfTheTable) {
  Config config;
  set_defaults(config);
  EXPECT_EQ(config.wait, 5u);
  EXPECT_EQ(config.warmup, 2u);
  EXPECT_EQ(config.active, 20u);
  EXPECT_EQ(config.repeat, 1u);
  EXPECT_EQ(config.max_size, 1073741824u);
  EXPECT_EQ(config.step_kind, StepKind::kOptimizer);
  EXPECT_EQ(config.device_time_kind, DeviceTimeKind::kAuto);
  EXPECT_STREQ(config.output, "");
}

TEST(Settings, EveryRowIsConsistent) {
  for (std::size_t i = 0; i < kOptionCount; ++i) {
    const OptionInfo& o = kOptions[i];
    std::string flag = "--";
    for (const char* c = o.variable + std::strlen("GPUBUSY_"); *c != '\0'; ++c) {
      flag += *c == '_' ? '-' : static_cast<char>(*c + 32);
    }
    EXPECT_EQ(o.flag, flag);
    EXPECT_EQ(o.kind == Kind::Text, o.text_default != nullptr) << o.member;
    if (o.kind != Kind::Text) {
      EXPECT_GE(o.number_default, o.minimum) << o.member;
      EXPECT_LE(o.number_default, o.maximum) << o.member;
    }
    EXPECT_GT(std::strlen(o.help), 10u);
  }
}

TEST(Settings, ReadsEveryKind) {
  Config config;
  const Result r = load_from(
      config, {"HOME=/root", "GPUBUSY_WAIT=0", "GPUBUSY_ACTIVE=1000000000", "GPUBUSY_MAX_SIZE=2G",
               "GPUBUSY_PRELUDE_SIZE=64k", "GPUBUSY_PYTHON_STACKS=Off", "GPUBUSY_OUTPUT=/a b:é",
               "GPUBUSY_STEP=kernel:*adam*", "GPUBUSY_DEVICE_TIME=events"});
  ASSERT_TRUE(r.good) << r.problem;
  EXPECT_EQ(config.wait, 0u);
  EXPECT_EQ(config.active, 1000000000u);
  EXPECT_EQ(config.max_size, std::uint64_t{2} << 30);
  EXPECT_EQ(config.prelude_size, 65536u);
  EXPECT_EQ(config.python_stacks, 0u);
  EXPECT_STREQ(config.output, "/a b:é");
  EXPECT_EQ(config.step_kind, StepKind::kKernel);
  EXPECT_STREQ(config.step_pattern, "*adam*");
  EXPECT_EQ(config.device_time_kind, DeviceTimeKind::kEvents);
}

TEST(Settings, FirstOfTwoEntriesCounts) {
  Config config;
  ASSERT_TRUE(load_from(config, {"GPUBUSY_WAIT=3", "GPUBUSY_WAIT=4"}).good);
  EXPECT_EQ(config.wait, 3u);
}

class BadNumber : public ::testing::TestWithParam<const char*> {};

TEST_P(BadNumber, IsRefusedWithOneClearMessage) {
  for (const char* member : {"skip_first", "wait", "warmup", "active", "repeat", "max_size"}) {
    const OptionInfo& o = option(member);
    Config config;
    const Result r = load_from(config, {std::string(o.variable) + "=" + GetParam()});
    EXPECT_FALSE(r.good) << o.variable << "=" << GetParam();
    EXPECT_THAT(r.problem, AllOf(HasSubstr(o.variable), HasSubstr("allowed is"),
                                 HasSubstr(std::to_string(o.maximum)), Not(HasSubstr("\n"))));
  }
}

INSTANTIATE_TEST_SUITE_P(Settings, BadNumber,
                         ::testing::Values("", "-1", "+1", " 1", "1 ", "1x", "0x10", "1.5", "1e3",
                                           "five", "99999999999999999999999",
                                           "18446744073709551616", "1000000000000000", "\n", "1\n2",
                                           "٣", "KK", "1KB"));

TEST(Settings, SizesDoNotOverflow) {
  Config config;
  EXPECT_FALSE(load_from(config, {"GPUBUSY_MAX_SIZE=18446744073709551615G"}).good);
  EXPECT_FALSE(load_from(config, {"GPUBUSY_MAX_SIZE=17179869185G"}).good);  // 2^64 + 1 GiB
  EXPECT_FALSE(load_from(config, {"GPUBUSY_MAX_SIZE=1048575"}).good);
  EXPECT_TRUE(load_from(config, {"GPUBUSY_MAX_SIZE=1048576"}).good);
  EXPECT_TRUE(load_from(config, {"GPUBUSY_MAX_SIZE=1M"}).good);
}

TEST(Settings, ActiveZeroIsRefused) {
  Config config;
  const Result r = load_from(config, {"GPUBUSY_ACTIVE=0"});
  EXPECT_FALSE(r.good);
  EXPECT_EQ(r.problem, "GPUBUSY_ACTIVE='0': allowed is a whole number from 1 to 1000000000");
}

TEST(Settings, BadTextsAreRefused) {
  Config config;
  for (const char* entry :
       {"GPUBUSY_STEP=", "GPUBUSY_STEP=optimiser", "GPUBUSY_STEP=kernel:", "GPUBUSY_STEP=call:",
        "GPUBUSY_DEVICE_TIME=", "GPUBUSY_DEVICE_TIME=gpu", "GPUBUSY_PYTHON_STACKS=2",
        "GPUBUSY_PROCESSES=", "GPUBUSY_PROCESSES=one", "GPUBUSY_PROCESSES=name:",
        "GPUBUSY_PYTHON_STACKS=", "GPUBUSY_OUTPUT=a%z", "GPUBUSY_OUTPUT=a%", "GPUBUSY_OUTPUT=%q",
        "GPUBUSY_OUTPUT=%q{}", "GPUBUSY_OUTPUT=%q{NOT_SET_AT_ALL}", "GPUBUSY_OUTPUT=%q{HOME"}) {
    const Result r = load_from(config, {entry});
    EXPECT_FALSE(r.good) << entry;
    EXPECT_THAT(r.problem, HasSubstr(std::string(entry, std::strchr(entry, '='))));
  }
  const Result r = load_from(config, {"GPUBUSY_OUTPUT=" + std::string(5000, 'x')});
  EXPECT_FALSE(r.good);
  EXPECT_LT(r.problem.size(), 400u);
}

TEST(Settings, UnknownVariableNamesTheNearest) {
  Config config;
  const Result r = load_from(config, {"GPUBUSY_WIAT=3"});
  EXPECT_FALSE(r.good);
  EXPECT_THAT(r.problem,
              AllOf(HasSubstr("GPUBUSY_WIAT='3'"), HasSubstr("did you mean GPUBUSY_WAIT"),
                    HasSubstr("GPUBUSY_PRELUDE_SIZE")));
  EXPECT_THAT(load_from(config, {"GPUBUSY_COLOUR_OF_THE_REPORT=red"}).problem,
              Not(HasSubstr("did you mean")));
  EXPECT_FALSE(load_from(config, {"GPUBUSY_" + std::string(9000, 'A') + "=1"}).good);
  EXPECT_FALSE(load_from(config, {"GPUBUSY_=1"}).good);
}

TEST(Settings, OtherPartsVariablesAreLeftAlone) {
  Config config;
  EXPECT_TRUE(load_from(config, {"GPUBUSY_SIM_LOG=x", "GPUBUSY_TEST_X=y", "GPUBUSY_INTERNAL_Z=",
                                 "GPUBUSY_VENV=/v", "GPUBUSY_NO_EQUALS", "XGPUBUSY_A=1"})
                  .good);
}

TEST(Settings, MessagesHaveNoControlCharacters) {
  Config config;
  const Result r = load_from(config, {"GPUBUSY_WAIT=\x1b[31m\nred"});
  EXPECT_THAT(r.problem, HasSubstr("'\\x1b[31m\\x0ared'"));
}

TEST(Settings, KeepsErrno) {
  Config config;
  errno = 4711;
  load_from(config, {"GPUBUSY_WAIT=99999999999999999999", "GPUBUSY_OUTPUT=%h"});
  EXPECT_EQ(errno, 4711);
}

TEST(Expand, EverySequence) {
  setenv("GPUBUSY_TEST_NAME", "job 7", 1);
  setenv("RANK", "3", 1);
  char out[256];
  Problem problem{};
  ASSERT_TRUE(expand_output("a%%b/%n/%q{GPUBUSY_TEST_NAME}/%p", out, sizeof out, problem));
  EXPECT_EQ(out, "a%b/3/job 7/" + std::to_string(getpid()));
  ASSERT_TRUE(expand_output("%h", out, sizeof out, problem));
  EXPECT_GT(std::strlen(out), 0u);
  unsetenv("RANK");
  ASSERT_TRUE(expand_output("%n", out, sizeof out, problem));
  EXPECT_STREQ(out, "norank");
  EXPECT_FALSE(expand_output("1234567890", out, 10, problem));
  EXPECT_TRUE(expand_output("123456789", out, 10, problem));
}

TEST(Ranks, OneFamilyGivesAll) {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK"}) unsetenv(name);
  setenv("SLURM_PROCID", "5", 1);
  setenv("SLURM_NTASKS", "8", 1);
  setenv("LOCAL_RANK", "1", 1);
  Ranks ranks = ranks_from_environment();
  EXPECT_EQ(ranks.rank, 5);
  EXPECT_EQ(ranks.world_size, 8);
  EXPECT_EQ(ranks.local_rank, -1);
  setenv("RANK", "2", 1);
  ranks = ranks_from_environment();
  EXPECT_EQ(ranks.rank, 2);
  EXPECT_EQ(ranks.world_size, -1);
  EXPECT_EQ(ranks.local_rank, 1);
  setenv("RANK", "2x", 1);
  EXPECT_EQ(ranks_from_environment().rank, 5);
  for (const char* name : {"RANK", "SLURM_PROCID", "SLURM_NTASKS", "LOCAL_RANK"}) unsetenv(name);
  EXPECT_EQ(ranks_from_environment().rank, -1);
}

TEST(Glob, Matches) {
  EXPECT_TRUE(glob_match("", ""));
  EXPECT_TRUE(glob_match("*", ""));
  EXPECT_TRUE(glob_match("*adam*", "fused_adam_kernel"));
  EXPECT_TRUE(glob_match("a?c*", "abcdef"));
  EXPECT_TRUE(glob_match("*a*b*c", "xxaxxbxxcxxc"));
  EXPECT_FALSE(glob_match("", "a"));
  EXPECT_FALSE(glob_match("a", ""));
  EXPECT_FALSE(glob_match("?", ""));
  EXPECT_FALSE(glob_match("Adam", "adam"));
  EXPECT_FALSE(glob_match("*ab", "abc"));
}

TEST(Glob, StaysFastOnHostileInput) {
  const std::string text(20000, 'a');
  std::string pattern;
  for (int i = 0; i < 1000; ++i) pattern += "*a";
  pattern += "*b";
  EXPECT_FALSE(glob_match(pattern.c_str(), text.c_str()));
}

}  // namespace
}  // namespace gpubusy::config
