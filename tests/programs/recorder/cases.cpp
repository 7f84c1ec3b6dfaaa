// SPDX-License-Identifier: Apache-2.0
//
// One case per run, named by the argument; what is printed and returned must be the same with the
// library (tests/integration/test_recorder.py).
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

extern "C" {
int strict_dead_uses();
int strict_unsafe_calls();
void strict_raise_in_next_launch(int signal);
void strict_fail_launches(int result);
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*,
                            dim3*, int*);
void __cudaUnregisterFatBinary(void**);
}

namespace {

char g_kernel;

cudaError_t launch(cudaStream_t stream = nullptr) {
  return cudaLaunchKernel(&g_kernel, dim3(1), dim3(1), nullptr, 0, stream);
}

// A thread is cancelled while its first CUDA call opens the recording.
int cancel() {
  static std::atomic<int> state{0};
  pthread_t thread;
  pthread_create(
      &thread, nullptr,
      [](void*) -> void* {
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
        while (state != 1) {
        }
        pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, nullptr);
        launch();
        state = 2;
        pthread_testcancel();
        return nullptr;
      },
      nullptr);
  usleep(1000);
  pthread_cancel(thread);
  state = 1;
  void* result = nullptr;
  pthread_join(thread, &result);
  std::printf("returned %d cancelled %d\n", state == 2, result == PTHREAD_CANCELED);
  launch();
  std::puts("launched");
  return 0;
}

// Threads are cancelled while blocks of the recording are written.
int cancel_writers() {
  for (int round = 0; round < 20; ++round) {
    pthread_t thread;
    pthread_create(
        &thread, nullptr,
        [](void*) -> void* {
          for (;;) {
            for (int i = 0; i < 5000; ++i) launch();
            pthread_testcancel();
          }
        },
        nullptr);
    usleep(3000);
    pthread_cancel(thread);
    pthread_join(thread, nullptr);
  }
  launch();
  std::puts("end");
  return 0;
}

// A module is unloaded while another thread forks.
int unload_and_fork() {
  static std::atomic<bool> stop{false};
  launch();
  std::thread loader([] {
    static char module;
    auto** handle = reinterpret_cast<void**>(&module);
    while (!stop) {
      for (std::uintptr_t i = 0; i < 50; ++i) {
        __cudaRegisterFunction(handle, reinterpret_cast<char*>(0x10000 + i * 16), nullptr, "k", 0,
                               nullptr, nullptr, nullptr, nullptr, nullptr);
      }
      __cudaUnregisterFatBinary(handle);
      // A mutex that is taken again at once starves the fork, which is slow but no deadlock.
      usleep(200);
    }
  });
  for (int i = 0; i < 1000; ++i) {
    const pid_t pid = fork();
    if (pid == 0) _exit(0);
    waitpid(pid, nullptr, 0);
  }
  stop = true;
  loader.join();
  std::puts("end");
  return 0;
}

int exit_in_signal_handler() {
  signal(SIGTERM, [](int) { exit(7); });
  for (int i = 0; i < 10; ++i) launch();
  strict_raise_in_next_launch(SIGTERM);
  launch();
  return 1;
}

// Threads go on launching while exit handlers run.
int launches_during_exit() {
  atexit([] { usleep(200000); });  // made before ours: runs after it
  cudaDeviceSynchronize();
  for (int t = 0; t < 4; ++t) {
    std::thread([] {
      for (;;) {
        launch();
        cudaDeviceSynchronize();
      }
    }).detach();
  }
  usleep(50000);
  exit(0);
}

int reset_device() {
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 200; ++i) launch();
    cudaDeviceReset();
  }
  for (int i = 0; i < 100; ++i) launch();
  std::printf("dead %d\n", strict_dead_uses());
  return 0;
}

int failed_end_of_capture() {
  auto* stream = reinterpret_cast<cudaStream_t>(0x40);
  launch();
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
  cudaGraph_t graph = nullptr;
  cudaStreamEndCapture(reinterpret_cast<cudaStream_t>(0x99), &graph);
  for (int i = 0; i < 500; ++i) launch();
  cudaStreamEndCapture(stream, &graph);
  for (int i = 0; i < 500; ++i) launch();
  // One that is never ended, but destroyed.
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
  cudaStreamDestroy(stream);
  for (int i = 0; i < 100; ++i) launch();
  std::printf("unsafe %d dead %d\n", strict_unsafe_calls(), strict_dead_uses());
  return 0;
}

// The handle is the same each time, the stream is not. Used in the odd steps, destroyed in the
// even.
int streams() {
  for (int step = 0; step < 6; ++step) {
    if (step % 2 == 0) {
      cudaDeviceSynchronize();
      continue;
    }
    cudaStream_t stream = nullptr;
    cudaStreamCreate(&stream);
    launch(stream);
    cudaDeviceSynchronize();
    cudaStreamDestroy(stream);
  }
  return 0;
}

int steps() {
  for (int i = 0; i < 10; ++i) {
    launch();
    cudaDeviceSynchronize();
  }
  strict_fail_launches(1);
  for (int i = 0; i < 5; ++i) launch();
  return 0;
}

// More calls than the prelude has room for before the first step.
int late_steps() {
  for (int i = 0; i < 10000; ++i) launch();
  return steps();
}

int change_directory() {
  if (chdir("/") != 0) return 1;
  for (int i = 0; i < 10; ++i) launch();
  return 0;
}

int fork_without_handlers() {
  for (int i = 0; i < 100; ++i) launch();
  const pid_t pid = _Fork();
  if (pid == 0) {
    for (int i = 0; i < 50; ++i) launch();
    exit(3);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  for (int i = 0; i < 100; ++i) launch();
  std::printf("child %d\n", WEXITSTATUS(status));
  return 0;
}

int fork_inside_a_call() {
  static pid_t pid = -1;
  cudaLaunchHostFunc(
      nullptr, [](void*) { pid = fork(); }, nullptr);
  for (int i = 0; i < 20; ++i) launch();
  if (pid == 0) exit(4);
  int status = 0;
  waitpid(pid, &status, 0);
  std::printf("child %d\n", WEXITSTATUS(status));
  return 0;
}

int children_that_free() {
  void* memory = nullptr;
  cudaMalloc(&memory, 64);
  cudaStream_t stream = nullptr;
  cudaStreamCreate(&stream);
  const pid_t pid = fork();
  if (pid == 0) {
    cudaFree(memory);
    cudaStreamDestroy(stream);
    exit(0);
  }
  waitpid(pid, nullptr, 0);
  return 0;
}

int closed_stderr() {
  // Whatever has the number now is the program's.
  close(STDERR_FILENO);
  int ends[2];
  if (pipe(ends) != 0) return 1;
  close(ends[0] == STDERR_FILENO ? ends[1] : ends[0]);
  launch();
  std::puts("alive");
  return 0;
}

int short_windows() {
  const char* steps = std::getenv("CASE_STEPS");
  for (int i = 0; i < (steps == nullptr ? 60 : std::atoi(steps)); ++i) {
    launch();
    cudaDeviceSynchronize();
    usleep(20000);
  }
  _exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  alarm(20);
  const struct {
    const char* name;
    int (*run)();
  } cases[] = {
      {"cancel", cancel},
      {"cancel_writers", cancel_writers},
      {"unload_and_fork", unload_and_fork},
      {"exit_in_signal_handler", exit_in_signal_handler},
      {"launches_during_exit", launches_during_exit},
      {"reset_device", reset_device},
      {"failed_end_of_capture", failed_end_of_capture},
      {"streams", streams},
      {"steps", steps},
      {"late_steps", late_steps},
      {"change_directory", change_directory},
      {"fork_without_handlers", fork_without_handlers},
      {"fork_inside_a_call", fork_inside_a_call},
      {"children_that_free", children_that_free},
      {"closed_stderr", closed_stderr},
      {"short_windows", short_windows},
  };
  for (const auto& c : cases) {
    if (std::strcmp(c.name, argv[1]) == 0) return c.run();
  }
  return 2;
}
