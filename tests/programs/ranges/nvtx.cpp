// SPDX-License-Identifier: Apache-2.0
//
// Uses NVTX as programs do; one case per run, named by the first argument. What NVTX returned is
// printed (tests/integration/test_ranges.py says what it must be, with and without a tool).
#include <cuda_profiler_api.h>
#include <cuda_runtime_api.h>
#include <errno.h>
#include <nvtx3/nvToolsExt.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace {

char g_kernel;
void launch() { cudaLaunchKernel(&g_kernel, dim3(1), dim3(1), nullptr, 0, nullptr); }

nvtxEventAttributes_t attributes() {
  nvtxEventAttributes_t a{};
  a.version = NVTX_VERSION;
  a.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  return a;
}
nvtxEventAttributes_t ascii(const char* text) {
  nvtxEventAttributes_t a = attributes();
  a.messageType = NVTX_MESSAGE_TYPE_ASCII;
  a.message.ascii = text;
  return a;
}

int values(char**) {
  launch();
  std::printf("pop of nothing %d\n", nvtxRangePop() < 0);
  const nvtxDomainHandle_t domain = nvtxDomainCreateA("dömain");
  const nvtxDomainHandle_t wide = nvtxDomainCreateW(L"wide \x65e5\x672c");
  std::printf("domains %d %d %d\n", domain != nullptr, wide != nullptr, domain != wide);
  nvtxNameCategoryA(3, "three");
  nvtxDomainNameCategoryW(domain, 3, L"d\x00e9j\x00e0");
  const nvtxStringHandle_t registered = nvtxDomainRegisterStringA(domain, "registered");
  const nvtxStringHandle_t again = nvtxDomainRegisterStringA(domain, "registered");
  const nvtxStringHandle_t wider = nvtxDomainRegisterStringW(domain, L"\x1f600 wide");
  std::printf("strings %d %d %d\n", registered != nullptr, registered == again,
              registered != wider);

  std::printf("push %d", nvtxRangePushA("outer"));
  std::printf(" %d", nvtxRangePushW(L"inn\x00e9r"));
  nvtxEventAttributes_t a = ascii("first of the domain");
  a.category = 3;
  a.colorType = NVTX_COLOR_ARGB;
  a.color = 0xff102030;
  a.payloadType = NVTX_PAYLOAD_TYPE_INT64;
  a.payload.llValue = -5;
  std::printf(" %d", nvtxDomainRangePushEx(domain, &a));
  a = attributes();
  a.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
  a.message.registered = registered;
  a.payloadType = NVTX_PAYLOAD_TYPE_DOUBLE;
  a.payload.dValue = 2.5;
  std::printf(" %d\n", nvtxDomainRangePushEx(domain, &a));
  launch();
  // Domains nest each for itself.
  std::printf("pop %d", nvtxRangePop());
  std::printf(" %d", nvtxDomainRangePop(domain));
  std::printf(" %d", nvtxDomainRangePop(domain));
  std::printf(" %d", nvtxRangePop());
  std::printf(" %d %d\n", nvtxRangePop() < 0, nvtxDomainRangePop(domain) < 0);

  const auto payload = [](const char* name, auto set) {
    nvtxEventAttributes_t b = ascii(name);
    set(b);
    b.category = 3;
    nvtxRangePushEx(&b);
    launch();
    nvtxRangePop();
  };
  payload("uint64", [](auto& b) {
    b.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64, b.payload.ullValue = ~0ull;
  });
  payload("uint32", [](auto& b) {
    b.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT32, b.payload.uiValue = ~0u;
  });
  payload("int32", [](auto& b) {
    b.payload.llValue = -1, b.payloadType = NVTX_PAYLOAD_TYPE_INT32, b.payload.iValue = -7;
  });
  payload("float", [](auto& b) {
    b.payload.llValue = -1, b.payloadType = NVTX_PAYLOAD_TYPE_FLOAT, b.payload.fValue = 0.5f;
  });
  payload("extension", [](auto& b) { b.payloadType = 0x7bd00009, b.payload.ullValue = 1; });

  // Of a client whose struct ends before the message.
  a = ascii("must not be read");
  a.size = offsetof(nvtxEventAttributes_t, messageType);
  nvtxRangePushEx(&a);
  nvtxRangePop();
  nvtxRangePushEx(nullptr);
  nvtxRangePop();
  nvtxRangePushA(nullptr);
  nvtxRangePop();

  // What is registered outlives its domain.
  nvtxDomainDestroy(domain);
  a = attributes();
  a.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
  a.message.registered = wider;
  nvtxDomainRangePushEx(domain, &a);
  nvtxDomainRangePop(domain);

  nvtxMarkA("mark");
  a = ascii("mark of the wide domain");
  nvtxDomainMarkEx(wide, &a);
  nvtxNameOsThreadA(static_cast<std::uint32_t>(syscall(SYS_gettid)), "the main one");
  std::string longer(5000, 'x');
  nvtxRangePushA(longer.c_str());
  nvtxRangePop();
  launch();
  return 0;
}

int threads(char**) {
  launch();
  const nvtxRangeId_t first = nvtxRangeStartA("across");
  const nvtxRangeId_t second = nvtxRangeStartW(L"ov\x00e9rlapping");
  std::printf("ids %d %d %d\n", first != 0, second != 0, first != second);
  std::thread([&] {
    pthread_setname_np(pthread_self(), "system");
    nvtxNameOsThreadW(static_cast<std::uint32_t>(syscall(SYS_gettid)), L"w\x00f6rker");
    nvtxRangePushA("of the worker");
    launch();
    nvtxRangeEnd(first);
    nvtxRangePop();
    nvtxRangePushA("never popped");
  }).join();
  nvtxRangeEnd(second);
  nvtxRangeEnd(second);  // twice
  nvtxRangeEnd(12345);
  std::vector<std::thread> all;
  for (int t = 0; t < 8; ++t) {
    all.emplace_back([t] {
      const std::string name = "thread " + std::to_string(t);
      for (int i = 0; i < 500; ++i) {
        nvtxRangePushA(name.c_str());
        nvtxRangePushA("inside");
        const nvtxRangeId_t id = nvtxRangeStartA("started");
        launch();
        nvtxRangePop();
        nvtxRangeEnd(id);
        const int level = nvtxRangePop();
        if (level != 0 && level != NVTX_NO_PUSH_POP_TRACKING) std::abort();
      }
    });
  }
  for (std::thread& t : all) t.join();
  return 0;
}

int forks(char**) {
  launch();
  nvtxRangePushA("outer");
  nvtxRangePushA("inner");
  const nvtxRangeId_t id = nvtxRangeStartA("started by the parent");
  const pid_t pid = fork();
  if (pid == 0) {
    launch();
    std::printf("child push %d\n", nvtxRangePushA("of the child"));
    std::printf("child pop %d", nvtxRangePop());
    std::printf(" %d", nvtxRangePop());
    nvtxRangeEnd(id);
    std::printf(" %d", nvtxRangePop());
    std::printf(" %d\n", nvtxRangePop() < 0);
    launch();
    std::fflush(stdout);
    exit(0);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  std::printf("child %d\n", status);
  nvtxRangeEnd(id);
  std::printf("parent pop %d", nvtxRangePop());
  std::printf(" %d\n", nvtxRangePop());
  launch();
  return 0;
}

// While threads push, pop and start, others fork; the children use NVTX too.
int fork_storm(char**) {
  // NVTX's own lazy start waits for ever in a child that is forked in the middle of it.
  nvtxMarkA("before the threads");

  launch();
  static std::atomic<bool> stop{false};
  std::vector<std::thread> all;
  for (int t = 0; t < 3; ++t) {
    all.emplace_back([] {
      while (!stop) {
        nvtxRangePushA("storm");
        nvtxRangeEnd(nvtxRangeStartA("started"));
        nvtxRangePop();
        nvtxMarkA("mark");
      }
    });
  }
  int bad = 0;
  for (int i = 0; i < 100; ++i) {
    const pid_t pid = fork();
    if (pid == 0) {
      nvtxRangePushA("child");
      nvtxRangeEnd(nvtxRangeStartA("child"));
      launch();
      _exit(nvtxRangePop());
    }
    int status = -1;
    waitpid(pid, &status, 0);
    bad += status != 0;
  }
  stop = true;
  for (std::thread& t : all) t.join();
  std::printf("bad %d\n", bad);
  return 0;
}

int executes(char** argv) {
  launch();
  nvtxRangePushA("before exec");
  char name[] = "threads";
  char* arguments[] = {argv[0], name, nullptr};
  execv(argv[0], arguments);
  return 1;
}

int deep(char**) {
  launch();
  constexpr int kDepth = 100'000;
  bool good = true;
  for (int i = 0; i < kDepth; ++i) good = nvtxRangePushA("deep") == i && good;
  launch();
  for (int i = kDepth; i-- > 0;) good = nvtxRangePop() == i && good;
  std::printf("levels %d, then %d\n", good, nvtxRangePop() < 0);
  return 0;
}

// One range round all, one in each step, one across each edge. A step ends with the
// synchronisation.
int windows(char**) {
  nvtxRangePushA("all");  // before there is a recording
  const nvtxRangeId_t id = nvtxRangeStartA("started before");
  const nvtxDomainHandle_t domain = nvtxDomainCreateA("edges");
  for (int step = 0; step < 12; ++step) {
    const std::string name = "step " + std::to_string(step);
    nvtxRangePushA(name.c_str());
    launch();
    nvtxRangePop();
    const nvtxEventAttributes_t a = ascii("across the edge");
    nvtxDomainRangePushEx(domain, &a);
    cudaDeviceSynchronize();
    launch();
    nvtxDomainRangePop(domain);
  }
  nvtxRangeEnd(id);
  nvtxRangePop();
  return 0;
}

// Steps are ranges; others are not.
int steps(char**) {
  launch();
  const nvtxDomainHandle_t domain = nvtxDomainCreateA("loop");
  for (int i = 0; i < 12; ++i) {
    const std::string name = "iteration " + std::to_string(i);
    nvtxEventAttributes_t a = ascii(name.c_str());
    nvtxDomainRangePushEx(domain, &a);
    nvtxRangePushA("forward");
    launch();
    nvtxRangePop();
    launch();
    nvtxDomainRangePop(domain);
    nvtxRangeEnd(nvtxRangeStartA(name.c_str()));
  }
  return 0;
}

// Windows by the profiler's functions; also marked by ranges. Before, between and behind them too
// many launches to be overlooked.
int captures(char**) {
  const auto work = [](int n) {
    for (int i = 0; i < n; ++i) launch();
    cudaDeviceSynchronize();
  };
  work(100);
  cudaProfilerStop();  // without a start
  work(100);
  cudaProfilerStart();
  nvtxRangePushA("capture one");
  work(3);
  cudaProfilerStart();  // is running already
  nvtxRangePushA("capture inside");
  work(3);
  nvtxRangePop();
  nvtxRangePop();
  cudaProfilerStop();
  cudaProfilerStop();
  work(100);
  cudaProfilerStart();
  const nvtxRangeId_t id = nvtxRangeStartA("capture two");
  work(5);
  nvtxRangeEnd(id);
  cudaProfilerStop();
  work(100);
  return 0;
}

int ends_while_captured(char**) {
  cudaProfilerStart();
  nvtxRangePushA("capture");
  for (int i = 0; i < 7; ++i) launch();
  return 0;
}

// More of everything than there is room for.
int many(char**) {
  launch();
  for (int i = 0; i < 20'000; ++i) {
    const std::string name = "unique " + std::to_string(i);
    nvtxRangePushA(name.c_str());
    nvtxRangePop();
    nvtxDomainRegisterStringA(nullptr, (name + " registered").c_str());
  }
  int bad = 0;
  for (int i = 0; i < 500; ++i) {
    const nvtxDomainHandle_t domain = nvtxDomainCreateA(("domain " + std::to_string(i)).c_str());
    bad += domain == nullptr;
    const nvtxEventAttributes_t a = ascii("in a domain");
    bad += nvtxDomainRangePushEx(domain, &a) != 0;
    bad += nvtxDomainRangePop(domain) != 0;
    nvtxDomainDestroy(domain);
  }
  std::vector<nvtxRangeId_t> ids;
  for (int i = 0; i < 10'000; ++i) ids.push_back(nvtxRangeStartA("open"));
  for (std::size_t i = 1; i < ids.size(); ++i) bad += ids[i] == ids[i - 1] || ids[i] == 0;
  for (const nvtxRangeId_t id : ids) nvtxRangeEnd(id);
  nvtxRangeEnd(nvtxRangeStartA("last"));
  std::printf("bad %d\n", bad);
  return 0;
}

// A signal handler that uses NVTX and CUDA, whatever it interrupts.
int signals(char**) {
  launch();
  struct sigaction action {};
  action.sa_handler = [](int) {
    const int saved = errno;
    const int level = nvtxRangePushA("in the handler");
    launch();
    if (nvtxRangePop() != level) _exit(9);
    errno = saved;
  };
  action.sa_flags = SA_RESTART;
  sigaction(SIGALRM, &action, nullptr);
  const itimerval often{{0, 50}, {0, 50}};
  setitimer(ITIMER_REAL, &often, nullptr);
  bool good = true;
  for (int i = 0; i < 200'000; ++i) {
    errno = 7;
    const int outer = nvtxRangePushA("outer");
    const nvtxRangeId_t id = nvtxRangeStartA("started");
    nvtxMarkA("mark");
    const int inner = nvtxRangePushA("inner");
    good = good && nvtxRangePop() == inner;
    nvtxRangeEnd(id);
    good = good && nvtxRangePop() == outer && errno == 7;
  }
  const itimerval never{};
  setitimer(ITIMER_REAL, &never, nullptr);
  launch();  // the judged span reaches to here
  std::printf("good %d\n", good);
  return 0;
}

// ns of a pair of push and pop.
int cost(char**) {
  launch();
  cudaDeviceSynchronize();
  cudaDeviceSynchronize();
  constexpr int kPairs = 2'000'000;
  timespec a, b;
  clock_gettime(CLOCK_MONOTONIC, &a);
  for (int i = 0; i < kPairs; ++i) {
    nvtxRangePushA("forward of a layer");
    nvtxRangePop();
  }
  clock_gettime(CLOCK_MONOTONIC, &b);
  std::printf("%.1f\n", (static_cast<double>(b.tv_sec - a.tv_sec) * 1e9 +
                         static_cast<double>(b.tv_nsec - a.tv_nsec)) /
                            kPairs);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  alarm(60);
  const struct {
    const char* name;
    int (*run)(char**);
  } cases[] = {
      {"values", values},     {"threads", threads},
      {"forks", forks},       {"fork_storm", fork_storm},
      {"executes", executes}, {"deep", deep},
      {"windows", windows},   {"steps", steps},
      {"captures", captures}, {"ends_while_captured", ends_while_captured},
      {"many", many},         {"signals", signals},
      {"cost", cost},
  };
  for (const auto& c : cases) {
    if (std::strcmp(c.name, argv[1]) == 0) return c.run(argv);
  }
  return 2;
}
