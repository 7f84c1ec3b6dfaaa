// SPDX-License-Identifier: Apache-2.0
#include "analysis/html/text_sink.hpp"

#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <new>

namespace gpubusy::analysis {

void TextSink::write(std::string_view text) {
  if (error_ != 0) return;
  bytes_ += text.size();
  buffer_ += text;
  if (buffer_.size() >= (1u << 18)) flush();
}

bool TextSink::flush() {
  std::string_view rest = buffer_;
  while (!rest.empty() && error_ == 0) {
    const ssize_t written = ::write(descriptor_, rest.data(), rest.size());
    if (written > 0) {
      rest.remove_prefix(static_cast<std::size_t>(written));
    } else if (written == 0 || errno != EINTR) {
      error_ = written == 0 ? EIO : errno;
    }
  }
  buffer_.clear();
  return error_ == 0;
}

std::string base64(std::string_view bytes) {
  static constexpr char kDigits[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const auto at = [&](std::size_t k) -> std::uint32_t {
      return k < bytes.size() ? static_cast<unsigned char>(bytes[k]) : 0;
    };
    const std::uint32_t three = at(i) << 16 | at(i + 1) << 8 | at(i + 2);
    out += kDigits[three >> 18];
    out += kDigits[three >> 12 & 63];
    out += i + 1 < bytes.size() ? kDigits[three >> 6 & 63] : '=';
    out += i + 2 < bytes.size() ? kDigits[three & 63] : '=';
  }
  return out;
}

Base64Stream::Base64Stream(TextSink& sink, bool compress) : sink_(sink) {
  raw_.reserve(kBuffer);
  if (!compress) return;
  zip_ = std::make_unique<z_stream_s>();
  constexpr int kGzip = 15 + 16;
  if (deflateInit2(zip_.get(), Z_DEFAULT_COMPRESSION, Z_DEFLATED, kGzip, 8, Z_DEFAULT_STRATEGY) !=
      Z_OK) {
    throw std::bad_alloc();
  }
}

Base64Stream::~Base64Stream() {
  if (zip_) deflateEnd(zip_.get());
}

void Base64Stream::finish() { drain(true); }

void Base64Stream::drain(bool last) {
  if (!zip_) {
    encode(raw_, last);
    raw_.clear();
    return;
  }
  zip_->next_in = reinterpret_cast<Bytef*>(raw_.data());
  zip_->avail_in = static_cast<uInt>(raw_.size());
  char packed[1 << 15];
  do {
    zip_->next_out = reinterpret_cast<Bytef*>(packed);
    zip_->avail_out = sizeof packed;
    deflate(zip_.get(), last ? Z_FINISH : Z_NO_FLUSH);
    const bool end = last && zip_->avail_out != 0;
    encode({packed, sizeof packed - zip_->avail_out}, end);
  } while (zip_->avail_out == 0);
  raw_.clear();
}

void Base64Stream::encode(std::string_view bytes, bool last) {
  rest_ += bytes;
  const std::size_t whole = last ? rest_.size() : rest_.size() / 3 * 3;
  sink_.write(base64(std::string_view(rest_).substr(0, whole)));
  rest_.erase(0, whole);
}

}  // namespace gpubusy::analysis
