// SPDX-License-Identifier: Apache-2.0
//
// Closes every descriptor, as daemons do, and opens files of its own under all these numbers.
// Prints what became of the files, and of the descriptors in a forked child.
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <thread>

namespace {

void kernel() {}
void launch(int times) {
  for (int i = 0; i < times; ++i) {
    cudaLaunchKernel(reinterpret_cast<const void*>(&kernel), dim3(1), dim3(1), nullptr, 0, nullptr);
  }
}

}  // namespace

int main() {
  launch(10);
  for (int fd = 3; fd < 1024; ++fd) close(fd);
  int last = -1;
  for (int i = 0; i < 600; ++i) {
    char path[] = "/tmp/gpubusy-close-all-XXXXXX";
    last = mkstemp(path);
    if (last < 0 || write(last, "USERDATA", 8) != 8) return 1;
    unlink(path);
  }
  launch(5000);
  std::thread([] { launch(10); }).join();
  int damaged = 0, closed = 0;
  for (int fd = 3; fd <= last; ++fd) {
    struct stat status;
    if (fstat(fd, &status) != 0) {
      ++closed;
    } else if (status.st_size != 8) {
      ++damaged;
    }
  }
  const pid_t child = fork();
  if (child == 0) {
    int gone = 0;
    for (int fd = 3; fd <= last; ++fd) gone += fcntl(fd, F_GETFD) < 0;
    _exit(gone);
  }
  int status = 0;
  waitpid(child, &status, 0);
  std::printf("last %d damaged %d closed %d closed in child %d\n", last, damaged, closed,
              WEXITSTATUS(status));
}
