// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <string>

#include "host/groups.hpp"
#include "host/processors.hpp"
#include "host/text_file.hpp"

namespace gpubusy::host {
namespace {

// A machine's files below a directory of its own.
class Root {
 public:
  Root() {
    char name[] = "/tmp/gpubusy-host-XXXXXX";
    folder_ = mkdtemp(name);
  }
  ~Root() { std::filesystem::remove_all(folder_); }
  Root(const Root&) = delete;
  Root& operator=(const Root&) = delete;

  void file(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(folder_ + path).parent_path());
    std::ofstream(folder_ + path) << text;
  }
  Groups groups() const {
    Groups out;
    read_groups(folder_.c_str(), out);
    return out;
  }
  Processors processors() const { return host::processors(folder_.c_str()); }
  std::string folder_of(const Group& group) const {
    const std::string path = group.folder.text();
    return path.substr(std::min(path.size(), folder_.size()));
  }
  const char* path() const { return folder_.c_str(); }

 private:
  std::string folder_;
};

TEST(Groups, WithoutFilesNothingIsKnown) {
  const Root root;
  const Groups g = root.groups();
  EXPECT_FALSE(g.tells_cpu);
  EXPECT_FALSE(g.tells_memory);
  EXPECT_EQ(g.quota_processors(), 0);
  EXPECT_FALSE(g.cpu.found() || g.memory.found() || g.pressure.found());
}

TEST(Groups, Version2TakesTheTightestOfTheGroupsAbove) {
  const Root root;
  root.file("/proc/self/cgroup", "0::/kube/pod/container\n");
  root.file("/sys/fs/cgroup/cgroup.controllers", "cpu memory\n");
  root.file("/sys/fs/cgroup/kube/pod/container/cpu.max", "max 100000\n");
  root.file("/sys/fs/cgroup/kube/pod/container/cpu.pressure", "some avg10=0.00 total=1\n");
  root.file("/sys/fs/cgroup/kube/pod/container/memory.max", "8589934592\n");
  root.file("/sys/fs/cgroup/kube/pod/cpu.max", "150000 100000\n");
  root.file("/sys/fs/cgroup/kube/pod/memory.max", "max\n");
  root.file("/sys/fs/cgroup/kube/cpu.max", "400000 100000\n");
  const Groups g = root.groups();
  EXPECT_TRUE(g.tells_cpu && g.tells_memory);
  EXPECT_EQ(g.cpu_quota_us, 150000u);
  EXPECT_EQ(g.cpu_period_us, 100000u);
  EXPECT_DOUBLE_EQ(g.quota_processors(), 1.5);
  EXPECT_EQ(root.folder_of(g.cpu), "/sys/fs/cgroup/kube/pod");
  EXPECT_EQ(g.memory_bytes, 8589934592u);
  EXPECT_EQ(root.folder_of(g.memory), "/sys/fs/cgroup/kube/pod/container");
  EXPECT_EQ(root.folder_of(g.pressure), "/sys/fs/cgroup/kube/pod/container");
  EXPECT_EQ(g.cpu.version, 2);
}

TEST(Groups, WithoutALimitTheProcessesOwnGroupCounts) {
  const Root root;
  root.file("/proc/self/cgroup", "0::/a/b\n");
  root.file("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  root.file("/sys/fs/cgroup/a/cpu.max", "max 100000\n");
  const Groups g = root.groups();
  EXPECT_TRUE(g.tells_cpu);
  EXPECT_FALSE(g.tells_memory);
  EXPECT_EQ(g.cpu_quota_us, 0u);
  EXPECT_EQ(root.folder_of(g.cpu), "/sys/fs/cgroup/a/b");
}

// In a container the group's path is one of the host's, of which only the mount is there.
TEST(Groups, OfAContainerThatSeesOnlyItsMount) {
  const Root root;
  root.file("/proc/self/cgroup", "0::/system.slice/docker-0123.scope\n");
  root.file("/sys/fs/cgroup/cpu.max", "50000 100000\n");
  EXPECT_DOUBLE_EQ(root.groups().quota_processors(), 0.5);
  root.file("/proc/self/cgroup", "0::/../other\n");
  EXPECT_DOUBLE_EQ(root.groups().quota_processors(), 0.5);
}

TEST(Groups, NoFileForALimitIsNoLimit) {
  const Root root;
  root.file("/proc/self/cgroup", "0::/\n");
  root.file("/sys/fs/cgroup/cgroup.controllers", "");
  const Groups g = root.groups();
  EXPECT_TRUE(g.tells_cpu && g.tells_memory);
  EXPECT_EQ(g.cpu_quota_us, 0u);
}

TEST(Groups, Version1BesideVersion2) {
  const Root root;
  root.file("/proc/self/cgroup",
            "9:name=systemd:/\n4:memory:/job\n2:cpu,cpuacct:/job/1\n0::/unified\n");
  root.file("/sys/fs/cgroup/cpu,cpuacct/job/1/cpu.cfs_quota_us", "-1\n");
  root.file("/sys/fs/cgroup/cpu,cpuacct/job/1/cpu.cfs_period_us", "100000\n");
  root.file("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "200000\n");
  root.file("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "50000\n");
  root.file("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n");
  root.file("/sys/fs/cgroup/unified/unified/cpu.pressure", "some avg10=0.00 total=1\n");
  const Groups g = root.groups();
  EXPECT_DOUBLE_EQ(g.quota_processors(), 4);
  EXPECT_EQ(root.folder_of(g.cpu), "/sys/fs/cgroup/cpu,cpuacct/job");
  EXPECT_EQ(g.cpu.version, 1);
  EXPECT_TRUE(g.tells_memory);
  EXPECT_EQ(g.memory_bytes, 0u);
  EXPECT_EQ(root.folder_of(g.pressure), "/sys/fs/cgroup/unified/unified");
}

TEST(Groups, TextsThatAreNone) {
  std::uint64_t quota = 1, period = 1, bytes = 1;
  EXPECT_TRUE(parse_cpu_max("max 100000\n", quota, period));
  EXPECT_EQ(quota, 0u);
  for (const char* bad :
       {"", "max", "maximum 1", "-1 100000", "100000", "100000 0", "x 1", "1 x"}) {
    EXPECT_FALSE(parse_cpu_max(bad, quota, period)) << bad;
    EXPECT_EQ(quota, 0u) << bad;
  }
  EXPECT_TRUE(parse_memory_limit("max\n", bytes));
  EXPECT_EQ(bytes, 0u);
  EXPECT_TRUE(parse_memory_limit("99999999999999999999999", bytes));
  EXPECT_EQ(bytes, 0u);
  EXPECT_FALSE(parse_memory_limit("", bytes));
  EXPECT_FALSE(parse_memory_limit("-5", bytes));
}

TEST(Groups, GroupOfAController) {
  std::size_t size = 0;
  const char* text = "5:cpu,cpuacct:/x\n4:cpuset:/y\n0::/z/w";
  const auto of = [&](const char* controller) {
    const char* at = group_of(text, controller, size);
    return at == nullptr ? std::string("none") : std::string(at, size);
  };
  EXPECT_EQ(of("cpu"), "/x");
  EXPECT_EQ(of("cpuacct"), "/x");
  EXPECT_EQ(of("cpuset"), "/y");
  EXPECT_EQ(of("memory"), "none");
  EXPECT_EQ(of(""), "/z/w");
  text = "nonsense\n::\n:::\n0:\n";
  EXPECT_EQ(of("cpu"), "none");
  EXPECT_EQ(of(""), "none");
}

TEST(Processors, Lists) {
  EXPECT_EQ(count_of_list("0\n"), 1u);
  EXPECT_EQ(count_of_list("0-3,8,10-11\n"), 7u);
  for (const char* bad : {"", "\n", "a", "3-1", "0-", "0,", "0-99999999", "0;1", "0-3 "}) {
    EXPECT_EQ(count_of_list(bad), 0u) << bad;
  }
}

TEST(Processors, OfThisMachine) {
  const Processors p = processors("");
  cpu_set_t set;
  CPU_ZERO(&set);
  ASSERT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
  EXPECT_EQ(p.usable, static_cast<unsigned>(CPU_COUNT(&set)));
  EXPECT_GE(p.online, p.usable);
  const Root root;
  root.file("/sys/devices/system/cpu/online", "0-15\n");
  EXPECT_EQ(root.processors().online, 16u);
  EXPECT_TRUE(memory().known);
  EXPECT_GT(memory().bytes, 1u << 20);
}

TEST(TextFile, NumbersAndLines) {
  std::uint64_t n = 0;
  const char* at = " 18446744073709551615x";
  EXPECT_TRUE(take_number(at, n));
  EXPECT_EQ(n, std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(*at, 'x');
  at = "18446744073709551616";
  EXPECT_TRUE(take_number(at, n));
  EXPECT_EQ(n, std::numeric_limits<std::uint64_t>::max());
  const char* text = "nr_periods 5\nnr_throttled 3\nthrottled\nlast 9";
  EXPECT_TRUE(number_of_line(text, "nr_throttled", n));
  EXPECT_EQ(n, 3u);
  EXPECT_TRUE(number_of_line(text, "last", n));
  EXPECT_EQ(n, 9u);
  EXPECT_FALSE(number_of_line(text, "throttled", n));
  EXPECT_FALSE(number_of_line(text, "nr_", n));
  EXPECT_FALSE(number_of_line("", "a", n));
}

TEST(TextFile, LongMissingAndCut) {
  const Root root;
  root.file("/long", std::string(100'000, '7'));
  Path path;
  char text[64];
  path.add(root.path()).add("/long");
  EXPECT_EQ(read_text(path, text, sizeof text), 63);
  EXPECT_EQ(std::string(text), std::string(63, '7'));
  Path missing;
  EXPECT_EQ(read_text(missing.add(root.path()).add("/none"), text, sizeof text), -ENOENT);
  EXPECT_EQ(text[0], '\0');
  Path folder;
  EXPECT_LT(read_text(folder.add(root.path()), text, sizeof text), 0);
  Path too_long;
  for (int i = 0; i < 300; ++i) too_long.add("/abcdefg");
  EXPECT_FALSE(too_long.is_whole());
  EXPECT_EQ(too_long.size(), Path::kMax - 1);
  EXPECT_EQ(read_text(too_long, text, sizeof text), -ENAMETOOLONG);
}

// As a status of /proc with very many groups.
TEST(TextFile, FieldsBehindLongLines) {
  const Root root;
  std::string groups;
  for (int i = 0; i < 3000; ++i) groups += std::to_string(100'000 + i) + " ";
  root.file("/status", "Name:\tx Uid:\t9\nUid:\t5\t6\nGroups:\t" + groups +
                           "\nVmSwap:\t     12 kB\nSeccomp:\t2\nSeccomp_filters:\t3");
  const auto field = [&root](const char* name, std::size_t size = 64) {
    Path path;
    char value[64];
    return read_field(path.add(root.path()).add("/status"), name, value, size)
               ? value
               : std::string("none");
  };
  EXPECT_EQ(field("Uid:\t"), "5\t6");
  EXPECT_EQ(field("VmSwap:"), "\t     12 kB");
  EXPECT_EQ(field("Seccomp:\t"), "2");
  EXPECT_EQ(field("Seccomp_filters:\t"), "3");  // the last line, without an end
  EXPECT_EQ(field("Groups:\t", 8), "100000 ");
  EXPECT_EQ(field("Threads:\t"), "none");
  EXPECT_EQ(field("swap"), "none");
  Path missing;
  char value[8] = "before";
  EXPECT_FALSE(read_field(missing.add(root.path()).add("/none"), "a", value, sizeof value));
  EXPECT_STREQ(value, "");
}

// Whatever the texts hold, what comes out is a limit or none, and nothing is read beyond them.
TEST(Groups, AnyBytes) {
  const Root root;
  std::mt19937 random(7);
  const std::string letters = "0123456789 max,:/.\n-\t\xff";
  const auto any = [&](std::size_t most) {
    std::string text(random() % most, ' ');
    for (char& c : text) c = letters[random() % letters.size()];
    return text;
  };
  for (int i = 0; i < 300; ++i) {
    root.file("/proc/self/cgroup", i % 3 == 0 ? any(20'000) : "0::/a/" + any(60));
    root.file("/sys/fs/cgroup/cpu.max", any(40));
    root.file("/sys/fs/cgroup/memory.max", any(40));
    root.file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", any(30));
    root.file("/sys/fs/cgroup/cpu/cpu.cfs_period_us", any(30));
    const Groups g = root.groups();
    EXPECT_TRUE(g.cpu_quota_us == 0 || g.cpu_period_us != 0);
    EXPECT_EQ(g.tells_cpu, g.cpu.found());
    EXPECT_EQ(g.tells_memory, g.memory.found());
    count_of_list(any(50).c_str());
  }
}

}  // namespace
}  // namespace gpubusy::host
