// SPDX-License-Identifier: Apache-2.0
//
// fork_and_cuda CASE: who calls CUDA before and after a fork. Prints every result; the exit code is
// the child's.
//   child    only the forked child
//   parent   only the parent, before the fork
//   both     the parent before, the child after: the driver refuses the child
#include <cuda.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

namespace {

int use_cuda(const char* who) {
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUdeviceptr memory = 0;
  const int init = cuInit(0);
  const int retain = cuDevicePrimaryCtxRetain(&context, 0);
  const int set = cuCtxSetCurrent(context);
  const int alloc = cuMemAlloc_v2(&memory, 1024);
  std::printf("%s %d %d %d %d %d\n", who, init, cuDeviceGet(&device, 0), retain, set, alloc);
  std::fflush(stdout);
  return alloc;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const char* which = argv[1];
  if (std::strcmp(which, "child") != 0) use_cuda("parent");
  const pid_t pid = fork();
  if (pid == 0) {
    const int result = std::strcmp(which, "parent") == 0 ? 0 : use_cuda("child");
    _exit(result == 0 ? 10 : 20);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  std::printf("child's status %d\n", status);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 99;
}
