"""The benchmarks that `hpcpipe bench` runs: each a module that returns one table beside what it is compared with."""

BENCHES = {
    "allreduce": ("hpcpipe.bench.allreduce:run", "the native collectives beside MPI's own, 4 KiB to 64 MiB"),
    "gpu": ("hpcpipe.bench.gpu:run", "a GPU's time between ready tasks, beside a bare torch loop"),
    "gpu-kernels": ("hpcpipe.bench.gpu_kernels:run", "a GPU's sums and packs of buckets beside a plain copy"),
    "overhead": ("hpcpipe.bench.overhead:run", "the runtime's own time a task beside torch's 1F1B"),
    "pipeline": ("hpcpipe.bench.pipeline:run", "schedules run on emulated devices, simulated, and torch's"),
    "requests": ("hpcpipe.bench.requests:run", "persistent receives beside plain nonblocking ones"),
    "slow-link": ("hpcpipe.bench.slow_link:run", "1 MiB messages over 1 Gbit/s between hosts, and torch's"),
    "preempted": ("hpcpipe.bench.preempted:run", "kFkB, fixed and chosen live, on links another tenant takes"),
    "dataparallel": ("hpcpipe.bench.dataparallel:run", "gradients over 1 and 10 Gbit/s: MPI, torch DDP, ours"),
    "paper-rrfp": ("hpcpipe.bench.paper_rrfp:run", "readiness-first against RRFP's table 1, simulated"),
    "paper-adagrouper": ("hpcpipe.bench.paper_adagrouper:run", "kFkB on a preempted network against Ada-Grouper"),
    "paper-dear": ("hpcpipe.bench.paper_dear:run", "the split all-reduce against DeAR's gains, simulated"),
}
"""Where each comes from and its line in the list, so that listing them imports none."""
