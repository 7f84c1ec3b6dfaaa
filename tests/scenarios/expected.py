# SPDX-License-Identifier: Apache-2.0
"""What the verdict must say of each example with a mistake: the table that tests and docs go by.

`finding`: its id, first among the problems. `cost`: what the finding's time is, so that the truth can
be worked out (harness.py). `settings`: of the simulated device, so that times are those of a real one
and large beside the noise of a small machine.
"""

import dataclasses

# Products of the examples' layers take 1 ms then.
SLOW_PRODUCTS = ("gemm_tflops=1",)
# All runs: the host gets at most about one step ahead of the GPU. With the real 1024 it comes to the
# same after some more steps, as in any long training.
QUEUE = "queue_depth=48"


@dataclasses.dataclass(frozen=True)
class Scenario:
    example: str  # examples/NAME.py
    finding: str
    cost: str = "idle"
    settings: tuple = SLOW_PRODUCTS
    # Known from looks at the launching thread alone: what none fell into cannot be told.
    by_looks: bool = False
    # The mistake costs time beyond its own lines too, up to all that the device idles.
    spreads: bool = False
    # The parts of a step's division that the cost is found in.
    parts: tuple = ()
    # … and what it turns into on a machine whose processors are taken.
    beside: tuple = ("no_processor",)
    # What holds up the workers that are waited for, at the line marked SLOW; empty: there are none.
    worker_bottleneck: str = ""


SCENARIOS = [
    Scenario("data_in_main_process", "data_starvation",
             parts=("loading", "input")),
    Scenario("data_too_few_workers", "data_starvation", worker_bottleneck="sleep",
             parts=("loader_workers", "input")),
    Scenario("data_slow_storage", "data_starvation",
             parts=("storage", "loading", "input")),
    Scenario("data_many_small_files", "data_starvation",
             parts=("loading", "storage", "input")),
    Scenario("data_heavy_cpu_transforms", "data_starvation",
             parts=("loading", "input")),
    Scenario("data_workers_restarted", "worker_restart",
             parts=("loader_workers", "worker_start", "input")),
    Scenario("copies_from_pageable_memory", "pageable_copies", "no_kernel",
             ("gemm_tflops=2", "pageable_gbps=0.8"),
             parts=("copy_htod_pageable", "pageable_copies")),
    Scenario("copies_non_blocking_but_pageable", "pageable_copies", "no_kernel",
             ("gemm_tflops=2", "pageable_gbps=0.8"),
             parts=("copy_htod_pageable", "pageable_copies")),
    Scenario("copies_not_overlapped", "copies_not_overlapped", "copies_alone",
             ("gemm_tflops=1.5", "h2d_gbps=1"),
             parts=("copy_htod_pinned",)),
    Scenario("sync_item_in_every_layer", "synchronisation", settings=("gemm_tflops=4", "call_us=20"),
             spreads=True,
             parts=("synchronisation",)),
    Scenario("sync_hidden", "synchronisation", settings=("gemm_tflops=1", "call_us=40"),
             spreads=True,
             parts=("synchronisation",)),
    Scenario("sync_explicit", "synchronisation",
             parts=("synchronisation",)),
    Scenario("launch_many_small_kernels", "launch_bound", settings=("gemm_tflops=3", "kernel_us=2"),
             parts=("launching",)),
    Scenario("copies_many_small", "small_copies", "no_kernel", ("gemm_tflops=2", "call_us=8"),
             parts=("small_copies", "copy_htod_pageable", "launching")),
    Scenario("device_copies", "device_copies", "device_copies",
             ("gemm_tflops=1", "memory_gbps=3", "kernel_table=")),
    Scenario("memory_cache_emptied", "allocation_churn", "allocations",
             settings=("gemm_tflops=1", "malloc_us=1000", "free_us=700"),
             parts=("allocation",)),
    Scenario("memory_full", "memory_full", "allocations",
             settings=("gemm_tflops=1", "malloc_us=2000", "free_us=1500", "memory_gib=0.6"),
             parts=("allocation",)),
    Scenario("memory_pinned_each_step", "pinning_churn", "pinning",
             settings=("gemm_tflops=4", "pin_us_per_mib=2000"),
             parts=("pinning",)),
    Scenario("checkpoint_blocking", "checkpoint",
             parts=("checkpoint",)),
    Scenario("logging_every_step", "logging",
             parts=("logging",)),
    Scenario("evaluation_too_often", "evaluation",
             parts=("evaluation",)),
    Scenario("garbage_collection", "garbage_collection", by_looks=True,
             parts=("garbage_collection",)),
    Scenario("gil_contention", "gil_contention", settings=("gemm_tflops=3",), by_looks=True,
             spreads=True,
             # A thread that was given the GIL and has no processor yet is ready to run.
             parts=("gil",), beside=("no_processor", "host_runs")),
    Scenario("memory_page_faults", "page_faults", by_looks=True, spreads=True,
             parts=("host_memory",)),
    Scenario("activations_on_the_host", "offloading", "both_ways_alone",
             ("gemm_tflops=2", "h2d_gbps=3", "d2h_gbps=3")),
    Scenario("cpu_part_of_the_model", "cpu_part_of_model",
             parts=("cpu_part",)),
    Scenario("streams_in_series", "serial_streams", "series", ("gemm_tflops=0.03",)),
    Scenario("slow_rank", "slow_rank", by_looks=True,
             parts=("peers",)),
]
BY_NAME = {scenario.example: scenario for scenario in SCENARIOS}
