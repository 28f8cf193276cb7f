"""On a real GPU: what the fake ones of the other tests stand in for. Without a GPU they say that they were not run."""

import time

import pytest
import torch

from hpcpipe.device.messages import Staged
from hpcpipe.models.deferred import deferrable, recording

pytestmark = pytest.mark.gpu
BUSY = 200_000_000
"""Clock cycles, some 0.1 s: long beside whatever the host does meanwhile."""


@pytest.fixture
def cuda():
    from hpcpipe.device.cuda import Cuda
    from hpcpipe.device.gpu import TorchGpu

    def staged(cuda):
        return Staged(cuda.gpu, compute=cuda.compute, inward=cuda.inward, outward=cuda.outward)

    made = Cuda(TorchGpu(0), now=time.monotonic_ns, messages=staged, nvtx=True)
    _load_kernels(made)
    yield made
    torch.cuda.synchronize()
    torch.cuda.set_stream(torch.cuda.default_stream())


def _load_kernels(cuda):
    """Use what the tests use once: CUDA loads a kernel at its first use, and may wait for the whole GPU meanwhile."""
    torch.cuda._sleep(1)
    host = cuda.gpu.pinned(2048)
    value = torch.arange(512.0, device=cuda.device) * 2 + torch.ones(512, device=cuda.device)
    torch.full((1 << 18,), 3.0, device=cuda.device)
    value.sum()
    cuda.gpu.copy(host, value.view(torch.uint8), cuda.compute)
    cuda.gpu.synchronize()


def _finish(ready):
    while not ready.done():
        time.sleep(1e-4)


def _busy():
    torch.cuda._sleep(BUSY)


def test_the_thread_computes_on_the_stream_of_the_tasks_and_not_on_the_default_one(cuda):
    assert torch.cuda.current_stream() == cuda.compute
    assert cuda.compute != torch.cuda.default_stream()
    assert len({stream.cuda_stream for stream in (cuda.compute, cuda.inward, cuda.outward)}) == 3


def test_a_task_is_given_without_waiting_for_it_and_its_times_are_within_what_the_host_has_seen(cuda):
    cuda.begin_step()
    before = time.monotonic_ns()
    first = cuda.launch("F0", lambda: (_busy(), torch.ones(1000, device=cuda.device))[1])
    assert not first.done()
    value = first.result()
    second = cuda.launch("B0", value.sum)
    assert not second.done()
    _finish(second)
    after = time.monotonic_ns()
    assert first.done() and float(second.result()) == 1000
    slack = 1_000_000 + cuda.clock.uncertainty
    times = [*first.times, *second.times]
    assert times == sorted(times)
    assert before - slack <= times[0] and times[-1] <= after + slack


def test_a_message_is_sealed_behind_its_task_and_a_message_lands_as_it_was(cuda):
    memory = cuda.memory
    buffer = memory.buffer(4096)
    task = cuda.launch("F0", lambda: (_busy(), torch.arange(512.0, device=cuda.device))[1])
    memory.store(task.result(), buffer, 128)
    sealed = memory.sealed(buffer, 128, 128 + 2048)
    assert not sealed.done()
    _finish(sealed)
    assert task.done()
    assert torch.equal(buffer.host[128 : 128 + 2048].view(torch.float32), torch.arange(512.0))
    received = memory.buffer(4096)
    received.host.copy_(buffer.host)
    landed = memory.landed(received, 128, 128 + 2048)
    _finish(landed)
    value = memory.load(received, 128, ("float32", (512,), True, ()))
    assert value.requires_grad and value.is_leaf and value.device == cuda.device
    doubled = cuda.launch("F1", lambda: value.detach() * 2)
    _finish(doubled)
    assert torch.equal(doubled.result().cpu(), 2 * torch.arange(512.0))


def test_a_tensor_that_its_owner_drops_is_sent_as_it_was_although_its_memory_is_used_again(cuda):
    """The outbox keeps the tensor until the copy is made; here the copy stream stands behind a long kernel."""
    memory, buffer = cuda.memory, cuda.memory.buffer(1 << 20)
    with cuda.gpu.on(cuda.outward):
        _busy()
    task = cuda.launch("F0", lambda: torch.full((1 << 18,), 3.0, device=cuda.device)[: (1 << 18) - 32])
    kept = task.result()
    memory.store(kept, buffer, 128)
    sealed = memory.sealed(buffer, 128, 128 + kept.nbytes)
    others = [cuda.launch("F1", lambda: torch.full((1 << 18,), 9.0, device=cuda.device)) for _ in range(20)]
    del others
    _finish(sealed)
    assert bool((buffer.host[128 : 128 + kept.nbytes].view(torch.float32) == 3.0).all())


def test_a_backward_on_the_gpu_runs_on_its_forwards_stream_and_can_be_split(cuda):
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.Linear(64, 64))
    layers.to(cuda.device)
    entry = torch.randn(32, 64, device=cuda.device)
    parameters = list(layers.parameters())

    def whole():
        leaf = entry.detach().requires_grad_()
        output = layers(leaf).square().sum()
        return torch.autograd.grad(output, [leaf, *parameters])

    expected = cuda.launch("whole", whole)
    deferrable(layers)

    def split():
        leaf = entry.detach().requires_grad_()
        output = layers(leaf).square().sum()
        with recording() as pending:
            gradients = torch.autograd.grad(output, [leaf, *parameters], allow_unused=True)
        assert pending.num_bytes > 0, "autograd's own thread did not find the recording"
        return gradients, pending

    gradients, pending = cuda.launch("B", split).result()
    weights = cuda.launch("W", lambda: pending.compute(parameters, gradients[1:]))
    _finish(weights)
    for ours, theirs in zip([gradients[0], *weights.result()], expected.result(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_what_is_computed_again_is_timed_by_the_gpu_within_its_task(cuda):
    again = []

    def body():
        begin = cuda.mark()
        _busy()
        again.append((begin, cuda.mark()))

    task = cuda.launch("B0", body, again)
    _finish(task)
    ((begin, end),) = task.again
    assert task.times[0] <= begin < end <= task.times[1]


def test_inputs_are_copied_behind_the_tasks_and_their_host_memory_may_go_at_once(cuda):
    def task(step):
        value = torch.full((1 << 20,), float(step))
        return cuda.launch("F", lambda: (_busy() if step == 0 else None, cuda.upload(value))[1])

    tasks = [task(step) for step in range(20)]
    _finish(tasks[-1])
    assert [float(each.result().mean()) for each in tasks] == [float(step) for step in range(20)]


def test_the_same_work_again_asks_the_gpu_for_no_memory(cuda):
    def step():
        values = [cuda.launch("F", lambda: torch.randn(1 << 20, device=cuda.device) * 2).result() for _ in range(4)]
        last = cuda.launch("B", lambda: torch.stack(values).sum())
        _finish(last)

    step()
    step()
    cuda.grown()
    for _ in range(10):
        step()
        assert cuda.grown() == ""
    assert cuda.peak_bytes() >= 5 * 4 << 20
