// SPDX-License-Identifier: Apache-2.0
//
// The tables of real code objects are compared inside each interpreter (inside.py, case lines);
// here are the formats' corners and damage.
#include "analysis/python_lines.hpp"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace gpubusy::analysis {
namespace {

std::string bytes(std::initializer_list<int> values) {
  std::string s;
  for (const int v : values) s += static_cast<char>(v);
  return s;
}

TEST(PythonLines, Lnotab) {
  const std::string table = bytes({4, 1, 6, 2, 255, 0, 10, 0x80 /* -128 */});
  EXPECT_EQ(line_of(table, 200, 8, 0), 200);
  EXPECT_EQ(line_of(table, 200, 8, 3), 200);
  EXPECT_EQ(line_of(table, 200, 8, 4), 201);
  EXPECT_EQ(line_of(table, 200, 9, 10), 203);
  EXPECT_EQ(line_of(table, 200, 9, 274), 203);
  EXPECT_EQ(line_of(table, 200, 9, 275), 75);
}

TEST(PythonLines, Ranges) {
  const std::string table = bytes({4, 1, 6, 0x80 /* no line */, 2, 5});
  EXPECT_EQ(line_of(table, 10, 10, 0), 11);
  EXPECT_EQ(line_of(table, 10, 10, 3), 11);
  EXPECT_EQ(line_of(table, 10, 10, 4), 10) << "no line: the first";
  EXPECT_EQ(line_of(table, 10, 10, 10), 16);
  EXPECT_EQ(line_of(table, 10, 10, 12), 10) << "behind the end";
}

TEST(PythonLines, Locations) {
  const std::string table = bytes({
      0x80 | 15 << 3 | 0,                       // 1 unit without line
      0x80 | 13 << 3 | 1, 2 << 1,               // 2 units, 2 lines on, no columns
      0x80 | 11 << 3 | 0, 7, 9,                 // 1 unit, 1 line on
      0x80 | 3 << 3 | 0, 0x55,                  // 1 unit, same line
      0x80 | 14 << 3 | 0, 1 << 1 | 1, 0, 1, 2,  // 1 unit, 1 line back
      0x80 | 13 << 3 | 0, 64 | 0, 1,            // varint of 2 bytes: 64 -> 32 lines on
  });
  const int lines[] = {10, 12, 12, 13, 13, 12, 44};
  for (unsigned unit = 0; unit < std::size(lines); ++unit) {
    EXPECT_EQ(line_of(table, 10, 11, unit * 2), lines[unit]) << unit;
    EXPECT_EQ(line_of(table, 10, 13, unit * 2 + 1), lines[unit]) << unit;
  }
  EXPECT_EQ(line_of(table, 10, 12, 14), 10) << "behind the end";
}

TEST(PythonLines, DamageGivesTheFirstLine) {
  for (const int minor : {8, 10, 11, 14}) {
    EXPECT_EQ(line_of("", 7, minor, 0), 7);
    EXPECT_EQ(line_of("", 7, minor, 0xffffffff), 7);
    EXPECT_EQ(line_of(std::string(5, '\x7f'), 7, 11, 100), 7);
  }
  const std::string endless = bytes({0x80 | 13 << 3, 127, 127, 127, 127, 127, 1});
  EXPECT_EQ(line_of(endless, 7, 11, 0), 7);
  EXPECT_EQ(line_of(bytes({0x80 | 13 << 3}), 7, 11, 0), 7) << "cut";
  EXPECT_EQ(line_of(bytes({0x80 | 13 << 3, 64 | 63, 63 | 64, 1}), 7, 11, 0), 7) << "negative line";
}

TEST(PythonLines, AnyBytes) {
  std::mt19937 random(1);
  for (int i = 0; i < 100000; ++i) {
    std::string table(random() % 64, '\0');
    for (char& c : table) c = static_cast<char>(random());
    const int first = static_cast<int>(random()) >> (random() % 32);
    line_of(table, first, static_cast<int>(random() % 20), random() >> (random() % 32));
  }
}

}  // namespace
}  // namespace gpubusy::analysis
