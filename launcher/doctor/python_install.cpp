// SPDX-License-Identifier: Apache-2.0
#include "launcher/doctor/python_install.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <string_view>

namespace gpubusy::launcher::doctor {
namespace {

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == path.npos ? std::string() : path.substr(0, slash);
}
std::string name_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// "python3.13t", "libpython3.13t.so.1.0": sets the minor version. False: no such name.
bool read_version(std::string_view text, PythonInstall& python) {
  const std::size_t at = text.find("python3.");
  if (at == text.npos) return false;
  std::size_t i = at + 8;
  int minor = 0;
  while (i < text.size() && text[i] >= '0' && text[i] <= '9' && minor < 1000) {
    minor = minor * 10 + (text[i++] - '0');
  }
  if (i == at + 8) return false;
  python.minor = minor;
  python.free_threaded = i < text.size() && text[i] == 't';
  return true;
}

// The value of `key = value` in a pyvenv.cfg.
std::string setting(const std::string& text, std::string_view key) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = std::string_view(text).substr(at, end - at);
    at = end + 1;
    const std::size_t equals = line.find('=');
    if (equals == line.npos || line.substr(0, line.find_last_not_of(' ', equals - 1) + 1) != key) {
      continue;
    }
    const std::size_t first = line.find_first_not_of(' ', equals + 1);
    return first == line.npos ? std::string() : std::string(line.substr(first));
  }
  return {};
}

// The text between quotes in `name... = 'text'` of version.py; empty: None, or not there.
std::string quoted(const std::string& text, std::string_view name) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = std::string_view(text).substr(at, end - at);
    at = end + 1;
    if (!line.starts_with(name) || line.size() == name.size() ||
        (line[name.size()] != ' ' && line[name.size()] != ':' && line[name.size()] != '=')) {
      continue;
    }
    const std::size_t open = line.find_first_of("'\"", line.find('='));
    if (line.find('=') == line.npos || open == line.npos) continue;
    const std::size_t close = line.find(line[open], open + 1);
    if (close != line.npos) return std::string(line.substr(open + 1, close - open - 1));
  }
  return {};
}

// pyenv's shims are scripts in front of ROOT/versions/VERSION/bin; empty: it is none, or which
// version it starts is not told.
std::string behind_shim(const Machine& m, const std::string& path) {
  const std::string folder = folder_of(path);
  if (name_of(folder) != "shims") return {};
  const std::string root = folder_of(folder);
  std::string version = m.variable("PYENV_VERSION").value_or("");
  if (version.empty()) version = m.read(root + "/version").value_or("");
  version = version.substr(0, version.find_first_of("\n:"));
  return version.empty() ? std::string()
                         : fmt::format("{}/versions/{}/bin/{}", root, version, name_of(path));
}

bool is_python_name(const std::string& name) {
  if (!name.starts_with("python")) return false;
  return name.find_first_not_of("0123456789.t", 6) == name.npos;
}

}  // namespace

std::optional<PythonInstall> python_at(const Machine& m, const std::string& path) {
  if (path.empty() || path[0] != '/') return std::nullopt;
  if (const std::string real = behind_shim(m, path); !real.empty()) return python_at(m, real);
  PythonInstall python;
  python.executable = m.resolve(path);
  if (python.executable.empty()) return std::nullopt;
  if (!is_python_name(name_of(python.executable)) && !is_python_name(name_of(path))) {
    return std::nullopt;
  }
  python.prefix = folder_of(folder_of(path));
  const std::string base = folder_of(folder_of(python.executable));
  bool known = read_version(name_of(python.executable), python);
  if (!known) {
    if (const auto elf = read_elf(m.root + python.executable)) {
      for (const std::string& needed : elf->needed) known = known || read_version(needed, python);
    }
  }
  const auto configuration = m.read(python.prefix + "/pyvenv.cfg");
  if (!known && configuration) {
    known = read_version("python" + setting(*configuration, "version"), python);
  }
  if (!known) {
    for (const std::string& name : m.list(base + "/lib")) {
      if (name.starts_with("python3.")) known = read_version(name, python) || known;
    }
  }
  const std::string version =
      fmt::format("python3.{}{}", python.minor, python.free_threaded ? "t" : "");

  const std::string path_variable = m.variable("PYTHONPATH").value_or("");
  for (std::size_t at = 0; at < path_variable.size();) {
    const std::size_t end = std::min(path_variable.find(':', at), path_variable.size());
    if (end > at) python.folders.push_back(path_variable.substr(at, end - at));
    at = end + 1;
  }
  if (known) {
    python.folders.push_back(fmt::format("{}/lib/{}/site-packages", python.prefix, version));
  }
  const bool alone =
      configuration && setting(*configuration, "include-system-site-packages") != "true";
  if (configuration) {
    python.kind = "venv";
  } else if (m.exists(python.prefix + "/conda-meta")) {
    python.kind = "conda";
  }
  if (!alone && known) {
    if (const auto home = m.variable("HOME"); home && !home->empty()) {
      python.folders.push_back(fmt::format("{}/.local/lib/{}/site-packages", *home, version));
    }
    if (base != python.prefix) {
      python.folders.push_back(fmt::format("{}/lib/{}/site-packages", base, version));
    }
    if (base == "/usr") {  // Debian's
      python.folders.push_back(fmt::format("/usr/local/lib/{}/dist-packages", version));
      python.folders.push_back("/usr/lib/python3/dist-packages");
    }
  }
  return python;
}

std::optional<PythonInstall> python_of(const Machine& m) {
  if (m.command.empty()) {
    // Looked up in the machine's own PATH, which find_program() reads.
    for (const char* name : {"python", "python3"}) {
      if (auto python = python_at(m, find_program(name))) return python;
    }
    return std::nullopt;
  }
  if (auto python = python_at(m, m.measured.program)) return python;
  if (m.measured.preload) {
    if (auto python = python_at(m, m.measured.preload->program)) return python;
  }
  for (std::size_t i = 1; i < m.command.size(); ++i) {  // srun -n 4 python train.py
    if (!is_python_name(name_of(m.command[i]))) continue;
    if (auto python = python_at(m, find_program(m.command[i]))) return python;
  }
  return std::nullopt;
}

std::optional<TorchInstall> torch_of(const Machine& m, const PythonInstall& python) {
  for (const std::string& folder : python.folders) {
    const auto text = m.read(folder + "/torch/version.py");
    if (!text) continue;
    TorchInstall torch;
    torch.folder = folder + "/torch";
    torch.version = quoted(*text, "__version__");
    torch.cuda = quoted(*text, "cuda");
    torch.hip = quoted(*text, "hip");
    return torch;
  }
  return std::nullopt;
}

}  // namespace gpubusy::launcher::doctor
