// SPDX-License-Identifier: Apache-2.0
#include <elf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "config/schedule.hpp"
#include "launcher/command_line.hpp"
#include "launcher/elf_file.hpp"
#include "launcher/environment.hpp"
#include "launcher/explain_schedule.hpp"
#include "launcher/output_directory.hpp"
#include "launcher/preload_check.hpp"

namespace gpubusy::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// ---- ELF ---------------------------------------------------------------------------------------

std::vector<std::byte> bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::vector<char> text((std::istreambuf_iterator<char>(in)), {});
  std::vector<std::byte> bytes(text.size());
  if (!text.empty()) std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

TEST(Elf, ReadsThisProgram) {
  const auto self = read_elf("/proc/self/exe");
  ASSERT_TRUE(self);
  EXPECT_EQ(self->bits, 64);
  EXPECT_THAT(self->interpreter, HasSubstr("ld-linux"));
  EXPECT_THAT(self->needed, ::testing::Contains("libc.so.6"));
  EXPECT_GE(self->needs_glibc, (GlibcVersion{2, 2}));
  EXPECT_EQ(self->provides_glibc, GlibcVersion{});
}

TEST(Elf, NoElfIsNothing) {
  EXPECT_FALSE(read_elf("/etc/passwd"));
  EXPECT_FALSE(read_elf("/"));
  EXPECT_FALSE(read_elf("/no/such/file"));
  EXPECT_FALSE(read_elf("/dev/zero"));
  EXPECT_FALSE(parse_elf({}));
}

TEST(Elf, TakesAnyBytes) {
  std::vector<std::byte> whole = bytes_of("/proc/self/exe");
  // The start is enough for headers; long tails only make the test slow.
  whole.resize(std::min<std::size_t>(whole.size(), 256 * 1024));
  std::mt19937 random(1);
  for (int i = 0; i < 3000; ++i) {
    std::vector<std::byte> bytes(whole.begin(),
                                 whole.begin() + static_cast<long>(random() % 4096 + 16));
    const int changes = static_cast<int>(random() % 16) + 1;
    for (int c = 0; c < changes; ++c) {
      bytes[4 + random() % (bytes.size() - 4)] = static_cast<std::byte>(random());
    }
    parse_elf(bytes);
  }
  for (int i = 0; i < 300; ++i) {
    std::vector<std::byte> bytes = whole;
    for (int c = 0; c < 8; ++c) bytes[4 + random() % 1024] = static_cast<std::byte>(random());
    parse_elf(bytes);
  }
}

// A folder of this test's own.
class PreloadCheckTest : public ::testing::Test {
 protected:
  PreloadCheckTest() {
    std::string name = ::testing::TempDir() + "gpubusy-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) ADD_FAILURE() << "no temporary folder";
    folder_ = name + "/";
  }
  ~PreloadCheckTest() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  // The headers of a program, as far as they are looked at.
  std::string write_elf(const std::string& name, unsigned char bits, std::uint16_t machine,
                        const std::string& interpreter) {
    Elf64_Ehdr header{};
    std::memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_ident[EI_CLASS] = bits == 64 ? ELFCLASS64 : ELFCLASS32;
    header.e_ident[EI_DATA] = ELFDATA2LSB;
    header.e_type = ET_DYN;
    header.e_machine = machine;
    header.e_phoff = sizeof header;
    header.e_phentsize = sizeof(Elf64_Phdr);
    header.e_phnum = interpreter.empty() ? 0 : 1;
    Elf64_Phdr segment{};
    segment.p_type = PT_INTERP;
    segment.p_offset = sizeof header + sizeof segment;
    const std::string path = folder_ + name;
    std::ofstream out(path, std::ios::binary);
    out.write(reinterpret_cast<const char*>(&header), sizeof header);
    out.write(reinterpret_cast<const char*>(&segment), sizeof segment);
    out << interpreter << '\0';
    return path;
  }

  std::string folder_;
};

TEST_F(PreloadCheckTest, SaysWhy) {
  const std::string library = "/proc/self/exe";  // a 64-bit ELF file of this machine
  const std::uint16_t here = read_elf(library)->machine;
  const std::uint16_t other = here == EM_X86_64 ? EM_AARCH64 : EM_X86_64;

  PreloadCheck check = check_preload({"/bin/sh"}, library);
  EXPECT_EQ(check.verdict, PreloadVerdict::kPossible) << check.reason;
  check = check_preload({write_elf("static", 64, here, "")}, library);
  EXPECT_EQ(check.verdict, PreloadVerdict::kIgnored);
  EXPECT_THAT(check.reason, HasSubstr("statically linked"));
  check = check_preload({write_elf("other", 64, other, "/lib/ld.so")}, library);
  EXPECT_EQ(check.verdict, PreloadVerdict::kHarmful);
  EXPECT_THAT(check.reason, HasSubstr(machine_name(other)));
  check = check_preload({write_elf("32", 32, EM_386, "/lib/ld.so")}, library);
  EXPECT_EQ(check.verdict, PreloadVerdict::kHarmful);
  EXPECT_THAT(check.reason, HasSubstr("32-bit"));
  check = check_preload({write_elf("musl", 64, here, "/lib/ld-musl-x86_64.so.1")}, library);
  EXPECT_EQ(check.verdict, PreloadVerdict::kHarmful);
  EXPECT_THAT(check.reason, HasSubstr("musl"));
}

TEST_F(PreloadCheckTest, FollowsScripts) {
  const std::string library = "/proc/self/exe";
  const std::string target = write_elf("static2", 64, read_elf(library)->machine, "");
  const std::string inner = folder_ + "inner";
  const std::string outer = folder_ + "outer";
  std::ofstream(inner) << "#! " << target << " -x\n";
  std::ofstream(outer) << "#!" << inner << "\n";
  EXPECT_EQ(check_preload({outer}, library).program, target);
  std::ofstream(outer) << "#!" << outer << "\n";  // itself
  EXPECT_EQ(check_preload({outer}, library).verdict, PreloadVerdict::kPossible);
  EXPECT_EQ(check_preload({"no-such-program"}, library).verdict, PreloadVerdict::kPossible);
}

TEST(PreloadCheck, WordsOfTheCommand) {
  EXPECT_THAT(reason_in_words({"env", "-i", "x"}), HasSubstr("env -i"));
  EXPECT_THAT(reason_in_words({"/usr/bin/env", "-", "x"}), HasSubstr("clears"));
  EXPECT_EQ(reason_in_words({"env", "A=-i", "x"}), "");
  EXPECT_THAT(reason_in_words({"docker", "run"}), HasSubstr("docker"));
  EXPECT_EQ(reason_in_words({"python", "-i"}), "");
}

// ---- environment -------------------------------------------------------------------------------

TEST(Environment, PreloadKeepsTheUsersOrder) {
  EXPECT_EQ(merge_preload("/o.so", nullptr), "/o.so");
  EXPECT_EQ(merge_preload("/o.so", ""), "/o.so");
  EXPECT_EQ(merge_preload("/o.so", " a.so::b.so "), "/o.so:a.so:b.so");
  EXPECT_EQ(merge_preload("/o.so", "a.so:/o.so"), "/o.so:a.so");
  EXPECT_EQ(merge_preload("/o.so", "a.so:/x/libasan.so.8"), "/x/libasan.so.8:/o.so:a.so");
  EXPECT_EQ(merge_preload("/o.so", "/x/libclang_rt.asan-x86_64.so"),
            "/x/libclang_rt.asan-x86_64.so:/o.so");
}

TEST(Environment, AsanOptionsAreAdded) {
  EXPECT_EQ(merge_asan_options(nullptr), "verify_asan_link_order=0");
  EXPECT_EQ(merge_asan_options("a=1"), "a=1:verify_asan_link_order=0");
  EXPECT_EQ(merge_asan_options("verify_asan_link_order=1"), "verify_asan_link_order=1");
}

TEST(Environment, ChangesReplace) {
  const char* base[] = {"A=1", "B=2", "NOEQUALS", "A=3", "AB=4", nullptr};
  EXPECT_THAT(change_environment(base, {{"A", "x"}, {"C", ""}}),
              ElementsAre("B=2", "NOEQUALS", "AB=4", "A=x", "C="));
}

TEST(Output, PatternsAreEscaped) { EXPECT_EQ(as_pattern("/a%p/100%"), "/a%%p/100%%"); }

// ---- command line ------------------------------------------------------------------------------

TEST(CommandLine, OptionsWinOverVariables) {
  const char* environment[] = {"GPUBUSY_WAIT=bad", "GPUBUSY_ACTIVE=7", nullptr};
  const auto line = parse_command_line({"--wait", "3", "prog", "--wait", "4"}, environment);
  ASSERT_TRUE(line) << line.error();
  EXPECT_EQ(line->config.wait, 3u);
  EXPECT_EQ(line->config.active, 7u);
  EXPECT_THAT(line->command, ElementsAre("prog", "--wait", "4"));
  EXPECT_THAT(line->variables,
              ElementsAre(std::pair<std::string, std::string>("GPUBUSY_WAIT", "3")));
}

TEST(CommandLine, LaterCommands) {
  const char* none[] = {nullptr};
  auto line = parse_command_line({"export", "--quiet", "--window", "3", "--", "-x"}, none);
  ASSERT_TRUE(line) << line.error();
  EXPECT_EQ(line->action, Action::kExport);
  EXPECT_EQ(line->window, 3u);
  EXPECT_EQ(line->last_window, 3u);
  EXPECT_THAT(line->paths, ElementsAre("-x"));
  EXPECT_FALSE(parse_command_line({"export", "--window", "4294967296", "x"}, none));
  line = parse_command_line({"export", "--window=2..11", "x"}, none);
  ASSERT_TRUE(line) << line.error();
  EXPECT_EQ(line->window, 2u);
  EXPECT_EQ(line->last_window, 11u);
  for (const char* bad : {"3..2", "..2", "3..", "3..x", "1..2..3", "1-2", ".."}) {
    EXPECT_FALSE(parse_command_line({"export", "--window", bad, "x"}, none)) << bad;
  }
  line = parse_command_line({"--", "export", "x"}, none);
  ASSERT_TRUE(line);
  EXPECT_EQ(line->action, Action::kRun);
}

TEST(CommandLine, FormsThatATableDoesNotHave) {
  const char* none[] = {nullptr};
  EXPECT_TRUE(parse_command_line({"report", "dir", "--by", "line", "--json"}, none));
  EXPECT_FALSE(parse_command_line({"report", "dir", "--by", "line", "--markdown"}, none));
  EXPECT_FALSE(parse_command_line({"report", "dir", "--by", "line", "--html", "x"}, none));
}

TEST(CommandLine, WhatIf) {
  const char* none[] = {nullptr};
  const auto line = parse_command_line({"whatif", "dir", "--change", "pinned", "--change=workers=4",
                                        "--together", "--processors", "8"},
                                       none);
  ASSERT_TRUE(line) << line.error();
  EXPECT_EQ(line->action, Action::kWhatIf);
  EXPECT_EQ(line->changes, (std::vector<std::string>{"pinned", "workers=4"}));
  EXPECT_TRUE(line->together);
  EXPECT_EQ(line->processors, 8u);
  EXPECT_FALSE(parse_command_line({"whatif", "dir", "--processors", "0"}, none));
  EXPECT_FALSE(parse_command_line({"whatif", "dir", "--change"}, none));
  EXPECT_FALSE(parse_command_line({"whatif"}, none));
}

TEST(CommandLine, TablesAndFormats) {
  const char* none[] = {nullptr};
  auto line = parse_command_line({"report", "x", "--by", "operator", "--top=5"}, none);
  ASSERT_TRUE(line) << line.error();
  EXPECT_EQ(line->by, analysis::GroupBy::kOperator);
  EXPECT_EQ(line->top, 5u);
  line = parse_command_line({"export", "--format=folded", "--weight", "idle", "x"}, none);
  ASSERT_TRUE(line) << line.error();
  EXPECT_EQ(line->format, ExportFormat::kFolded);
  EXPECT_EQ(line->weight, analysis::Weight::kIdle);
  EXPECT_EQ(parse_command_line({"export", "x"}, none)->format, ExportFormat::kTrace);
  EXPECT_EQ(parse_command_line({"export", "--format", "svg", "x"}, none).error(),
            "--format='svg': allowed are trace, folded, pprof");
  const std::vector<std::vector<std::string>> bad = {
      {"report", "x", "--by", "file"},
      {"report", "x", "--top", "5"},
      {"report", "x", "--by", "line", "--top", "-1"},
      {"compare", "x", "y", "--by", "line"},
      {"export", "x", "--weight", "idle"},
      {"export", "x", "--format", "pprof", "--weight", "idle"},
      {"export", "x", "--format", "folded", "--window", "1"},
      {"export", "x", "--format", "folded", "--no-compress"},
      {"export", "x", "--format", "folded", "--no-frames"},
      {"export", "x", "--format", "folded", "--prelude"}};
  for (const auto& words : bad) EXPECT_FALSE(parse_command_line(words, none)) << words[2];
}

TEST(CommandLine, ExportSwitch) {
  const char* off[] = {"GPUBUSY_EXPORT=0", nullptr};
  EXPECT_FALSE(parse_command_line({"prog"}, off)->export_traces);
  EXPECT_TRUE(parse_command_line({"--export", "1", "prog"}, off)->export_traces);
}

// ---- schedule ----------------------------------------------------------------------------------

// What the table says of each step, read back from its text.
std::vector<char> phases_in(const std::string& table, std::size_t steps) {
  std::vector<char> phases(steps, '?');
  std::size_t at = table.find('\n', table.find('\n') + 1) + 1;
  while (at < table.size()) {
    const std::size_t end = table.find('\n', at);
    const std::string line = table.substr(at, end - at);
    at = end + 1;
    std::size_t used = 0;
    const std::size_t first = std::stoul(line, &used);
    std::size_t last = first;
    if (line[used] == '-') {
      last = line[used + 1] == ' ' ? steps - 1 : std::stoul(line.substr(used + 1));
    }
    const char phase = line.find("recorded") != line.npos  ? 'R'
                       : line.find("warm-up") != line.npos ? 'W'
                                                           : 'N';
    for (std::size_t i = first; i <= last && i < steps; ++i) phases[i] = phase;
  }
  return phases;
}

TEST(ExplainSchedule, SaysWhatTheScheduleDoes) {
  std::mt19937 random(2);
  for (int i = 0; i < 2000; ++i) {
    const auto small = [&](unsigned n) { return std::uint64_t{random() % n}; };
    const config::Schedule schedule{small(4), small(2), small(4), small(3), 1 + small(4), small(5)};
    const std::size_t steps = 1 + random() % 60;
    const std::string table = explain_schedule(schedule, steps);
    const std::vector<char> said = phases_in(table, steps);
    for (std::size_t step = 0; step < steps; ++step) {
      const config::Action action = config::action_at(schedule, step);
      const char expected = config::records(action)             ? 'R'
                            : action == config::Action::kWarmup ? 'W'
                                                                : 'N';
      ASSERT_EQ(said[step], expected) << "step " << step << " of\n" << table;
    }
  }
}

TEST(ExplainSchedule, HugeNumbersAreQuick) {
  const std::string table =
      explain_schedule({1000000000, 0, 1000000000, 1000000000, 1000000000, 0}, 0);
  EXPECT_THAT(table, HasSubstr("3000000000-3999999999   recorded"));
  EXPECT_THAT(table, HasSubstr("\n0-1999999999            idle\n"));
  EXPECT_THAT(table, HasSubstr("and so on, every 3000000000 steps"));
}

}  // namespace
}  // namespace gpubusy::launcher
