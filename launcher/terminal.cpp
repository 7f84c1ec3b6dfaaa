// SPDX-License-Identifier: Apache-2.0
#include "launcher/terminal.hpp"

#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

namespace gpubusy::launcher {

analysis::TextOptions text_options_for(int fd) {
  analysis::TextOptions options;
  const auto value = [](const char* name) {
    const char* text = getenv(name);
    return std::string_view(text != nullptr ? text : "");
  };
  if (isatty(fd) == 1) {
    options.colour = value("NO_COLOR").empty() && value("TERM") != "dumb";
    winsize size{};
    if (ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
      options.width = std::min<int>(size.ws_col, 160);
    }
  }
  std::string_view locale;
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    locale = value(name);
    if (!locale.empty()) break;
  }
  // An empty or C locale says nothing about the reader in most containers: those take UTF-8.
  options.ascii = !locale.empty() && locale != "C" && locale != "POSIX" &&
                  locale.find("UTF-8") == locale.npos && locale.find("utf8") == locale.npos &&
                  locale.find("UTF8") == locale.npos && locale.find("utf-8") == locale.npos;
  return options;
}

bool write_all(int fd, const std::string& text) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    done += static_cast<std::size_t>(n);
  }
  return true;
}

void say(const std::string& text) { write_all(STDERR_FILENO, "gpubusy: " + text + "\n"); }

}  // namespace gpubusy::launcher
