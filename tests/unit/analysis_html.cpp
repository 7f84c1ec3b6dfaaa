// SPDX-License-Identifier: Apache-2.0
//
// The pieces that write the HTML report; the page itself is tested by tests/html.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>

#include "analysis/html/text_sink.hpp"

namespace gpubusy::analysis {
namespace {

class Output {
 public:
  ~Output() { std::fclose(file_); }
  int descriptor() const { return fileno(file_); }
  std::string text() const {
    std::string out(static_cast<std::size_t>(lseek(descriptor(), 0, SEEK_END)), '\0');
    EXPECT_EQ(pread(descriptor(), out.data(), out.size(), 0), static_cast<ssize_t>(out.size()));
    return out;
  }

 private:
  std::FILE* file_ = std::tmpfile();
};

std::string plain(int values, std::uint64_t factor) {
  Output file;
  TextSink sink(file.descriptor());
  Base64Stream stream(sink, false);
  for (int i = 0; i < values; ++i) stream.varint(static_cast<std::uint64_t>(i) * factor);
  stream.finish();
  EXPECT_TRUE(sink.flush());
  EXPECT_EQ(sink.bytes(), file.text().size());
  return file.text();
}

TEST(TextSink, Base64IsThatOfTheRfc) {
  EXPECT_EQ(base64(""), "");
  EXPECT_EQ(base64("f"), "Zg==");
  EXPECT_EQ(base64("fo"), "Zm8=");
  EXPECT_EQ(base64("foo"), "Zm9v");
  EXPECT_EQ(base64("foob"), "Zm9vYg==");
  EXPECT_EQ(base64("\xff\xfe\xfd"), "//79");
}

TEST(TextSink, VarintsAreLittleEndianGroupsOfSeven) {
  Output file;
  TextSink sink(file.descriptor());
  Base64Stream stream(sink, false);
  for (const std::uint64_t value : {std::uint64_t{0}, std::uint64_t{127}, std::uint64_t{128},
                                    std::uint64_t{300}, ~std::uint64_t{0}}) {
    stream.varint(value);
  }
  stream.finish();
  ASSERT_TRUE(sink.flush());
  EXPECT_EQ(
      file.text(),
      base64(std::string("\x00\x7f\x80\x01\xac\x02\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 16)));
}

TEST(TextSink, PiecesMakeTheSameAsTheWhole) {
  // Longer than any buffer, in lengths that are no multiple of three.
  std::string expected;
  for (int i = 0; i < 200'000; ++i) {
    std::uint64_t value = static_cast<std::uint64_t>(i) * 977;
    for (; value >= 0x80; value >>= 7) expected += static_cast<char>(value | 0x80);
    expected += static_cast<char>(value);
  }
  EXPECT_EQ(plain(200'000, 977), base64(expected));
}

TEST(TextSink, CompressedIsGzip) {
  Output file;
  TextSink sink(file.descriptor());
  Base64Stream stream(sink, true);
  for (int i = 0; i < 300'000; ++i) stream.varint(static_cast<std::uint64_t>(i % 100));
  stream.finish();
  ASSERT_TRUE(sink.flush());
  const std::string text = file.text();
  EXPECT_THAT(text, ::testing::StartsWith("H4sI"));  // 1f 8b 08
  EXPECT_LT(text.size(), 30'000u);
}

TEST(TextSink, AFullDiskIsAnErrorThatStays) {
  const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
  if (full < 0) GTEST_SKIP() << "no /dev/full";
  TextSink sink(full);
  sink.write("text");
  EXPECT_FALSE(sink.flush());
  EXPECT_EQ(sink.error(), ENOSPC);
  sink.write("more");
  EXPECT_FALSE(sink.flush());
  EXPECT_EQ(sink.error(), ENOSPC);
  close(full);
}

}  // namespace
}  // namespace gpubusy::analysis
