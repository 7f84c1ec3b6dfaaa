// SPDX-License-Identifier: Apache-2.0
#include "launcher/output_directory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

#include "launcher/environment.hpp"

namespace gpubusy::launcher {
namespace {

// Less cannot hold a header and the first blocks of a few threads.
constexpr std::uint64_t kLeastSpace = 1u << 20;

std::string default_name() {
  const time_t now = time(nullptr);
  tm parts{};
  gmtime_r(&now, &parts);
  char stamp[32];
  strftime(stamp, sizeof stamp, "%Y%m%dT%H%M%SZ", &parts);
  return fmt::format("gpubusy-{}-{}", stamp, getpid());
}

std::string error_text(int error) {
  return std::error_code(error, std::generic_category()).message();
}

// Empty: a recording can be written there.
std::string try_out(const std::string& path) {
  const std::string probe = path + "/.gpubusy-probe-XXXXXX";
  std::string name = probe;
  const int fd = mkostemp(name.data(), O_CLOEXEC);
  if (fd < 0) return fmt::format("cannot write in '{}': {}", path, error_text(errno));
  unlink(name.c_str());
  close(fd);
  struct statvfs info {};
  if (statvfs(path.c_str(), &info) == 0) {
    const std::uint64_t free = std::uint64_t{info.f_bavail} * info.f_frsize;
    if (free < kLeastSpace) {
      return fmt::format("'{}' has {} bytes free; a recording needs at least {}", path, free,
                         kLeastSpace);
    }
  }
  return {};
}

// As mkdir -p. What it made is in `made`, outermost first, also where it fails; 0 or an errno.
int make_directories(const std::string& path, std::vector<std::string>& made) {
  for (std::size_t at = path.find('/', 1);; at = path.find('/', at + 1)) {
    const std::string part = path.substr(0, at);
    if (mkdir(part.c_str(), 0777) == 0) {
      made.push_back(part);
    } else if (errno != EEXIST) {
      // Above the first one that is missing there may be one that nobody may write to.
      struct stat info {};
      const int error = errno;
      if (stat(part.c_str(), &info) != 0) return error;
    }
    if (at == std::string::npos) return 0;
  }
}

}  // namespace

void remove_made(const OutputDirectory& output) {
  for (auto it = output.made.rbegin(); it != output.made.rend(); ++it) rmdir(it->c_str());
}

tl::expected<OutputDirectory, std::string> prepare_output(const config::Config& config,
                                                          bool has_output) {
  OutputDirectory out;
  std::string name;
  std::vector<std::string>& made = out.made;
  if (has_output) {
    char expanded[config::kTextMax];
    config::Problem problem{};
    if (!config::expand_output(config.output, expanded, sizeof expanded, problem)) {
      return tl::unexpected(std::string(problem.text));
    }
    name = expanded;
    if (const int error = make_directories(name, made); error != 0) {
      remove_made(out);
      return tl::unexpected(
          fmt::format("cannot make output directory '{}': {}", name, error_text(error)));
    }
  } else {
    out.named_by_us = true;
    const std::string base = default_name();
    for (int i = 0; made.empty(); ++i) {
      name = i == 0 ? base : fmt::format("{}-{}", base, i);
      if (mkdir(name.c_str(), 0777) == 0) {
        made.push_back(name);
      } else if (errno != EEXIST || i >= 1000) {
        return tl::unexpected(
            fmt::format("cannot make output directory '{}' here: {} (choose one with --output)",
                        name, error_text(errno)));
      }
    }
  }

  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::canonical(name, error);
  if (error) {
    remove_made(out);
    return tl::unexpected(fmt::format("output directory '{}': {}", name, error.message()));
  }
  out.path = absolute.string();
  // The launcher may be asked for them from elsewhere.
  for (std::string& part : made) part = std::filesystem::canonical(part, error).string();
  std::string problem;
  if (!std::filesystem::is_directory(absolute, error)) {
    problem = fmt::format("output '{}' is not a directory", name);
  } else if (as_pattern(out.path).size() >= config::kTextMax) {
    problem = fmt::format("output directory's path is longer than {} bytes", config::kTextMax - 1);
  } else {
    problem = try_out(out.path);
  }
  if (!problem.empty()) {
    remove_made(out);
    return tl::unexpected(problem);
  }
  return out;
}

std::string as_pattern(const std::string& path) {
  std::string pattern;
  for (const char c : path) pattern.append(c == '%' ? 2 : 1, c);
  return pattern;
}

std::string make_private_link(const std::string& library) {
  for (const char* root : {static_cast<const char*>(getenv("XDG_RUNTIME_DIR")),
                           static_cast<const char*>(getenv("TMPDIR")), "/tmp", "/var/tmp"}) {
    if (root == nullptr || root[0] != '/' || !is_preload_safe(root)) continue;
    std::string folder = std::string(root) + "/gpubusy-XXXXXX";
    if (mkdtemp(folder.data()) == nullptr) continue;
    // Other users of the tree of processes (su, setuid helpers) must be able to load it too.
    chmod(folder.c_str(), 0755);
    const std::string link = folder + "/libgpubusy.so";
    if (symlink(library.c_str(), link.c_str()) == 0) return link;
    rmdir(folder.c_str());
  }
  return {};
}

void remove_private_link(const std::string& link) {
  unlink(link.c_str());
  rmdir(std::filesystem::path(link).parent_path().c_str());
}

}  // namespace gpubusy::launcher
