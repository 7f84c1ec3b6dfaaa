// SPDX-License-Identifier: Apache-2.0
//
// loads_libraries WORD…: opens libraries and runs work() of each that has it. Words beside paths:
// "deep": RTLD_DEEPBIND for what follows; "idle": does not run work(); "fork": goes on in a child.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

int main(int argc, char** argv) {
  int flags = RTLD_NOW | RTLD_LOCAL;
  bool works = true;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "deep") == 0) {
      flags |= RTLD_DEEPBIND;
    } else if (std::strcmp(argv[i], "idle") == 0) {
      works = false;
    } else if (std::strcmp(argv[i], "fork") == 0) {
      if (const pid_t child = fork(); child != 0) {
        int status = 0;
        waitpid(child, &status, 0);
        _exit(WEXITSTATUS(status));
      }
    } else {
      void* library = dlopen(argv[i], flags);
      if (library == nullptr) return std::puts(dlerror()), 2;
      auto* work = reinterpret_cast<int (*)()>(dlsym(library, "work"));
      if (works && work != nullptr) std::printf("%d\n", work());
    }
  }
}
