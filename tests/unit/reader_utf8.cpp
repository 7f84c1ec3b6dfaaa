// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "recording/utf8.hpp"

namespace gpubusy::recording {
namespace {

const std::string kBad = "\xef\xbf\xbd";

TEST(ReaderUtf8, ValidTextStays) {
  for (const std::string text : {"", "plain", "\xc3\xa9", "\xe6\x97\xa5\xe6\x9c\xac",
                                 "\xf0\x9f\x98\x80", "\xed\x9f\xbf", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_EQ(repair_utf8(text), text);
  }
}

TEST(ReaderUtf8, EachBadByteIsReplaced) {
  EXPECT_EQ(repair_utf8("a\xff"
                        "b"),
            "a" + kBad + "b");
  EXPECT_EQ(repair_utf8("\xc3"), kBad);                                   // cut
  EXPECT_EQ(repair_utf8("\xe6\x97"), kBad + kBad);                        // cut
  EXPECT_EQ(repair_utf8("\xed\xa0\x80"), kBad + kBad + kBad);             // surrogate
  EXPECT_EQ(repair_utf8("\xc0\xaf"), kBad + kBad);                        // overlong
  EXPECT_EQ(repair_utf8("\xe0\x80\x80"), kBad + kBad + kBad);             // overlong
  EXPECT_EQ(repair_utf8("\xf4\x90\x80\x80"), kBad + kBad + kBad + kBad);  // beyond U+10FFFF
}

}  // namespace
}  // namespace gpubusy::recording
