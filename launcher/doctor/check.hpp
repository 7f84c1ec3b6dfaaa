// SPDX-License-Identifier: Apache-2.0
//
// `gpubusy doctor`: one row per check, one result per check that applies. A check reads a Machine
// and nothing else. Never throws but std::bad_alloc.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/doctor/machine.hpp"

namespace gpubusy::launcher::doctor {

// A failure: there will be no recording, or one without what was asked for.
enum class Status : std::uint8_t { kOk, kWarning, kFailure, kUnknown };

struct Outcome {
  Status status = Status::kOk;
  std::string found;  // one line with the value
  std::string why;    // why it matters; empty where kOk needs no word
  std::string cure;   // what to do; empty: nothing
};

struct Check {
  const char* id;                                 // stable, for JSON
  const char* title;                              // for the text
  std::optional<Outcome> (*run)(const Machine&);  // nothing: does not apply here
};

struct Result {
  std::string id, title;
  Outcome outcome;
};

// Every check, in the order of display.
const std::vector<Check>& all_checks();
std::vector<Result> examine(const Machine& machine);
bool will_record(const std::vector<Result>& results);  // no failure among them
const char* status_name(Status status);                // for JSON: "ok", "warning", …

}  // namespace gpubusy::launcher::doctor
