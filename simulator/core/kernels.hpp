// SPDX-License-Identifier: Apache-2.0
//
// Kernels: those registered by nvcc's generated code, those of loaded modules, and those of the
// simulated libraries; and how long each takes.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "simulator/core/kernel_table.hpp"
#include "simulator/core/operation.hpp"
#include "simulator/core/truth_log.hpp"

namespace gpubusy::sim {

// What a kernel of a simulated library gets as its only argument, and takes its time from.
struct Work {
  double flops = 0;
  double bytes = 0;
  double rate_share = 1;  // of the gemm rate: 1 for half precision
};

struct Module;

// Handed out as CUfunction, CUkernel and cudaKernel_t. Never deleted.
class Kernel {
 public:
  static constexpr std::uint32_t kMagic = 0x6b65726eu;
  std::uint32_t magic = kMagic;
  bool takes_work = false;
  std::atomic<bool> loaded{false};  // launched before, so its code is on the device
  std::atomic<bool> costed{false};
  const char* name = "";  // of the registering library, until that is unloaded
  Module* module = nullptr;
  int max_dynamic_shared = 49152;
  double base_ns = 0, wave_ns = 0;
  LoggedName logged;
};

struct Module {
  static constexpr std::uint32_t kMagic = 0x6d6f6475u;
  std::uint32_t magic = kMagic;
  bool is_simulated_library = false;
  std::vector<Kernel*> kernels;
};

// Modules of the simulated libraries are loaded from this image.
extern const char kLibraryImage[];

class Kernels {
 public:
  void set_costs(double kernel_us, double scale, std::vector<KernelTime> table);

  Module* load_module(const void* image);
  // One Kernel for each name of a module.
  Kernel* find_in_module(Module* module, const char* name);

  // Time and share of the device. `sm_count`, memory and matrix rates from the parameters.
  struct Cost {
    std::uint64_t duration_ns;
    float share;
  };
  Cost cost(Kernel& kernel, Dim3 grid, Dim3 block, std::uint32_t shared_bytes,
            void** arguments) noexcept;

 private:
  void look_up_cost(Kernel& kernel) noexcept;
  std::vector<KernelTime> table_;
  double kernel_ns_ = 5000, scale_ = 1;
};

// Registered by a program's static initialisers; apart from Kernels since it comes first.
class Registry {
 public:
  struct Variable {
    const char* name;
    std::size_t size;
    void* device_memory[16];
  };
  struct Fatbin {
    std::vector<const void*> functions;
  };
  Fatbin* add_fatbin();
  void remove_fatbin(Fatbin* fatbin);
  void add_function(Fatbin* fatbin, const void* host, const char* name);
  void add_variable(const void* host, const char* name, std::size_t size);
  Kernel* find(const void* host);  // nullptr: not registered
  Variable* find_variable(const void* host);
};
Registry& registry() noexcept;

}  // namespace gpubusy::sim
