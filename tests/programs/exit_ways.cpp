// SPDX-License-Identifier: Apache-2.0
//
// Ends in the way that argv[1] names, after a CUDA call; static destructors make more calls.
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace {

struct FreesLate {
  void* pointer = nullptr;
  ~FreesLate() { cudaFree(pointer); }
} g_late;

void on_signal(int) { exit(5); }  // not allowed by POSIX, done by many

}  // namespace

int main(int, char** argv) {
  cudaMalloc(&g_late.pointer, 100);
  const char* way = argv[1];
  if (!strcmp(way, "return")) return 3;
  if (!strcmp(way, "exit")) exit(3);
  if (!strcmp(way, "_exit")) _exit(3);
  if (!strcmp(way, "quick_exit")) quick_exit(3);
  if (!strcmp(way, "abort")) abort();
  if (!strcmp(way, "kill")) raise(SIGKILL);
  if (!strcmp(way, "segv")) raise(SIGSEGV);
  if (!strcmp(way, "thread")) {
    std::thread([] { exit(3); }).join();
  }
  if (!strcmp(way, "signal")) {
    signal(SIGTERM, on_signal);
    raise(SIGTERM);
  }
  if (!strcmp(way, "pthread_exit")) pthread_exit(nullptr);
  return 1;
}
