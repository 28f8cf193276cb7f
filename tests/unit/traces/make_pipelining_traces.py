"""Make the traces in this folder: two tiny pipelines of torch.distributed.pipelining over gloo, profiled on the CPU.

Run it to renew them: `python tests/unit/traces/make_pipelining_traces.py`. What its own clock saw of the tasks is kept
beside the traces (`*.truth.json`), so a test can hold the import to it.
"""

import gzip
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.multiprocessing as mp
from torch import distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.profiler import ProfilerActivity, profile, schedule

FOLDER = Path(__file__).parent
MICROBATCHES, WIDTH, STEPS = 4, 64, 2
KEPT = ("Forward", "Backward", "PP:", "ProfilerStep#", "gloo:", "c10d::", "Stage")


class Timed(torch.nn.Module):
    """A layer that sleeps, so that its time is known, and notes when its forwards ran (Unix time in ns)."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH)
        self.seconds, self.spans = seconds, []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        start = time.time_ns()
        time.sleep(self.seconds)
        y = torch.relu(self.linear(x))
        self.spans.append((start, time.time_ns()))
        return y


def work(rank: int, ranks: int, name: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29611", RANK=str(rank), WORLD_SIZE=str(ranks))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    chunks = 1 if name == "gpipe" else 2
    modules = [Timed(0.004 * (1 + (rank == 1))) for _ in range(chunks)]
    stages = [
        PipelineStage(module, chunk * ranks + rank, ranks * chunks, torch.device("cpu"))
        for chunk, module in enumerate(modules)
    ]
    loss = torch.nn.MSELoss()
    made = (
        ScheduleGPipe(stages[0], MICROBATCHES, loss_fn=loss)
        if name == "gpipe"
        else ScheduleInterleaved1F1B(stages, MICROBATCHES, loss_fn=loss)
    )
    x, target = torch.randn(MICROBATCHES * 2, WIDTH), torch.randn(MICROBATCHES * 2, WIDTH)
    last = rank == ranks - 1
    plan = schedule(wait=0, warmup=1, active=STEPS, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan, acc_events=True) as profiler:
        for _ in range(STEPS + 1):
            dist.barrier()
            made.step(*([x] if rank == 0 else []), **({"target": target} if last else {}))
            profiler.step()
    path = FOLDER / f"{name}_rank{rank}.json"
    profiler.export_chrome_trace(str(path))
    trace = json.loads(path.read_text())
    path.unlink()
    own = [each for each in trace["traceEvents"] if str(each.get("name", "")).startswith(KEPT)]
    trace["traceEvents"] = [{**e, "args": {}} for e in own] if "--whole" not in sys.argv else trace["traceEvents"]
    trace = {
        key: trace[key]
        for key in ("schemaVersion", "distributedInfo", "baseTimeNanoseconds", "traceEvents")
        if key in trace
    }
    with gzip.GzipFile(path.with_suffix(".json.gz"), "wb", mtime=0) as file:
        file.write(json.dumps(trace).encode())
    spans = [module.spans[-STEPS * MICROBATCHES :] for module in modules]
    (FOLDER / f"{name}_rank{rank}.truth.json").write_text(json.dumps(spans))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, args=(4, "gpipe"), nprocs=4)
    mp.spawn(work, args=(2, "interleaved"), nprocs=2)
