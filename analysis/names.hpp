// SPDX-License-Identifier: Apache-2.0
//
// Names for people and for the consumers of traces. Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "recording/recording.hpp"

namespace gpubusy::analysis {

// The C++ name of a mangled one; anything else comes back unchanged.
std::string demangle(const std::string& name);

// "cuMemcpyHtoDAsync_v2_ptsz" -> "cuMemcpyHtoDAsync": without version and per-thread suffixes.
std::string_view api_base_name(std::string_view exported_name);

// The last part of a path.
std::string_view file_name(std::string_view path);

// … of a source file: with its folder, where the name alone says nothing ("data/__init__.py").
std::string_view source_name(std::string_view path);

// Kineto's words: "Pageable", "Pinned", "Device", "Array", "Managed", "Unknown".
std::string_view memory_kind_name(recording::MemoryKind kind);

// Kineto's words: "HtoD", "DtoH", "DtoD", "HtoH", "PtoP", "Unknown".
std::string_view direction_name(recording::CopyDirection direction);

// "cuda events", "cupti", "none".
std::string_view time_source_name(recording::TimeSource source);

// "optimizer step", "kernel pattern", "call", "none".
std::string_view step_source_name(recording::StepSource source);

// "finished", "open", …
std::string_view file_state_name(recording::FileState state);

// A text cut to `characters`, its end replaced by "…" (ascii: "...").
std::string shorten(const std::string& text, std::size_t characters, bool ascii);

// The first `count` characters of a text.
std::string first_characters(const std::string& text, std::size_t count);

// Characters (code points) of valid UTF-8.
std::size_t length_of(std::string_view text);

}  // namespace gpubusy::analysis
