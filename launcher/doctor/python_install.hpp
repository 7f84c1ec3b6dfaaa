// SPDX-License-Identifier: Apache-2.0
//
// Which Python a program is, and which PyTorch it would import, read from files: nothing is run.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/doctor/machine.hpp"

namespace gpubusy::launcher::doctor {

struct PythonInstall {
  std::string executable;  // without links
  int minor = 0;           // of 3.x; 0: not known
  bool free_threaded = false;
  std::string kind;                  // "venv", "conda", or empty
  std::string prefix;                // where it was named
  std::vector<std::string> folders;  // where it looks for packages, in order
};

struct TorchInstall {
  std::string folder;   // .../torch
  std::string version;  // "2.13.0+cu130"
  std::string cuda;     // "13.0"; empty: a build without
  std::string hip;      // a build for AMD; empty: none
};

// The interpreter at `path`; nothing: it is no Python.
std::optional<PythonInstall> python_at(const Machine& m, const std::string& path);
// The Python of the command: itself, its #! line, or the first word that names one. Without a
// command: the one that PATH finds.
std::optional<PythonInstall> python_of(const Machine& m);
std::optional<TorchInstall> torch_of(const Machine& m, const PythonInstall& python);

}  // namespace gpubusy::launcher::doctor
