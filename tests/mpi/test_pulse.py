"""Messages that move while the rank they are for computes, and a rank that may call MPI from one thread only."""

import time
from pathlib import Path

import pytest
import torch
from mpi4py import MPI

from hpcpipe.device.cpu import Cpu
from hpcpipe.plan import Kind, Task
from hpcpipe.runtime import Inlet, Mailbox, Mesh, World
from hpcpipe.runtime.pulse import Pulse

NUMBERS = 4 << 20
PATIENCE_S = 20.0


def _wait_for(path):
    """Be busy as a task is, in this thread and without MPI, until the file is there; return whether it came."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if path.exists():
            return True
        time.sleep(1e-3)
    return False


@pytest.mark.mpi(min_size=2)
@pytest.mark.skipif(MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="MPI may be called from one thread only")
def test_a_large_message_arrives_while_its_receiver_is_in_a_task(comm, tmp_path):
    """The task ends when its sender says that the send is complete: without a pulse it would wait for ever."""
    mesh = Mesh(comm, pipeline=comm.size, data=1, tensor=1)
    stage = mesh.place.stage
    sent = Path(World(comm).share(str(tmp_path / "sent")))
    inlets = [Inlet(Kind.F, 0, 0, 1)] if stage == 1 else []
    mailbox = Mailbox(mesh, inlets=inlets, payload_bytes=4 * NUMBERS, memory=Cpu(sharing_ranks=4))
    pulse = Pulse(comm)
    comm.Barrier()
    if stage == 0:
        mailbox.send(1, Task(Kind.F, 0), torch.full((NUMBERS,), 3.0), step=0)
        end = time.monotonic() + PATIENCE_S
        while mailbox.sending and time.monotonic() < end:
            mailbox.poll()
        if not mailbox.sending:
            sent.touch()
    if stage == 1:
        with pulse:
            assert _wait_for(sent)
        assert pulse.calls > 0
        arrivals = []
        while not arrivals:
            arrivals, _ = mailbox.poll()
        assert arrivals[0][1].value[-1].item() == 3.0
        mailbox.release(Task(Kind.F, 0), arrivals[0][1].slot)
    comm.Barrier()
    pulse.close()
    mailbox.free()
    mesh.free()


@pytest.mark.mpi(min_size=1)
def test_a_pulse_calls_mpi_only_while_it_is_entered(comm):
    pulse = Pulse(comm, period_s=1e-4)
    time.sleep(0.02)
    assert pulse.calls == 0
    pulse.close()
