// SPDX-License-Identifier: Apache-2.0
//
// The part of the reader below read_file (recording.hpp): from bytes to a Recording. Never fails on
// bad blocks or records: they are counted in the Recording. Memory is bounded by a small multiple
// of the source's size. Thread-safe.
#pragma once

#include <string>

#include <tl/expected.hpp>

#include "recording/byte_source.hpp"
#include "recording/recording.hpp"

namespace gpubusy::recording {

// `name` is used in messages and becomes Recording::path.
tl::expected<Recording, Error> read_source(const std::string& name, const ByteSource& source);

}  // namespace gpubusy::recording
