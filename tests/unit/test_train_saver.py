"""Ranks that save together: whatever a rank's disk does and however long, all know the same after the same step."""

import errno
import random
import threading
from types import SimpleNamespace

import pytest
from checkpoints import SHAPES, held, job_of, manifest_of

from hpcpipe.checkpoint import MODEL, faults_of, list_steps, read_manifest
from hpcpipe.train import saver as module
from hpcpipe.train.saver import Saver, Target

PATIENCE_S = 30


class Ranks:
    """Several ranks' savers in one process; steps and sums are made here, and the disk does what a test says."""

    def __init__(self, tmp_path, monkeypatch, *, count=3, every=2, keep=2):
        self.job = job_of(tmp_path, f"checkpoint.every={every}", f"checkpoint.keep={keep}")
        self.folder = tmp_path / "checkpoints"
        self.done = 0
        self.held_back = {}
        self.faults = {}
        self.events = []
        self._told = []
        self._step = 0
        original = module.write_part

        def write(folder, pieces, *, number, **rest):
            event = self.held_back.get(number)
            assert event is None or event.wait(PATIENCE_S)
            if number in self.faults:
                raise OSError(errno.ENOSPC, self.faults[number])
            original(folder, pieces, number=number, **rest)

        monkeypatch.setattr(module, "write_part", write)
        self.savers = [self._saver(rank, count) for rank in range(count)]

    def _saver(self, rank, count):
        world = SimpleNamespace(rank=rank, size=count, gather=lambda _: self._told if rank == 0 else [])

        def snapshot():
            names = list(SHAPES)[rank::count]
            return [held(name, self.done, kind) for name in names for kind in (MODEL, "exp_avg")]

        return Saver(
            self.job.checkpoint,
            Target(self.folder),
            world=world,
            snapshot=snapshot,
            describe=lambda step: manifest_of(self.job, step),
            record=lambda *event: self.events.append((rank, *event)),
        )

    def step(self, *, sound=True):
        """Do a step on all ranks; return the busy flags, which are the same."""
        self.done += 1
        for saver in self.savers:
            saver.after_step(self.done)
        self.exchange(sound=sound)
        return self.savers[0].busy

    def exchange(self, *, sound=True):
        """Sum the rows and hand the sums out, as after a step."""
        rows = [saver.row() for saver in self.savers]
        sums = [sum(column) for column in zip(*rows, strict=True)]
        self._told = [saver._fault for saver in self.savers]
        for saver in self.savers:
            saver.take(sums, sound=sound)
        assert len({(saver.busy, saver.last) for saver in self.savers}) == 1
        return sums

    def settle(self):
        """Go on without beginning anything until nothing is under way."""
        for _ in range(10_000):
            if not self.savers[0].busy:
                return
            for saver in self.savers:
                if saver._thread is not None:
                    saver._thread.join(0.01)
            self.exchange()
        raise AssertionError("it never ends")


def test_all_ranks_have_the_same_checkpoints_however_long_each_takes(tmp_path, monkeypatch):
    ranks = Ranks(tmp_path, monkeypatch)
    draws = random.Random(7)
    for _ in range(40):
        for rank in range(3):
            if draws.random() < 0.3 and rank not in ranks.held_back:
                ranks.held_back[rank] = threading.Event()
            elif draws.random() < 0.5 and rank in ranks.held_back:
                ranks.held_back.pop(rank).set()
            thread = ranks.savers[rank]._thread
            if thread is not None and rank not in ranks.held_back and draws.random() < 0.7:
                thread.join(0.2)
        ranks.step()
    for event in ranks.held_back.values():
        event.set()
    ranks.settle()
    found = list_steps(ranks.folder)
    assert ranks.savers[0].last == (read_manifest(found[0]).step, found[0])
    assert len(found) == 2
    assert all(faults_of(path, read_manifest(path), content=True) == [] for path in found)
    assert {path.name for path in ranks.folder.iterdir()} == {"latest", *(path.name for path in found)}


def test_a_slow_rank_holds_up_its_checkpoint_and_no_step(tmp_path, monkeypatch):
    """The turn that comes meanwhile is taken as soon as the slow one is done."""
    ranks = Ranks(tmp_path, monkeypatch)
    ranks.held_back[1] = threading.Event()
    assert [ranks.step() for _ in range(6)] == [False] + [True] * 5
    assert list_steps(ranks.folder) == []
    ranks.held_back.pop(1).set()
    ranks.settle()
    assert ranks.savers[0].last[0] == 2
    ranks.step()
    ranks.settle()
    assert ranks.savers[0].last[0] == 7


@pytest.mark.parametrize("rank", [0, 2])
def test_a_full_disk_on_one_rank_is_told_once_and_the_old_checkpoint_stays(tmp_path, monkeypatch, capsys, rank):
    ranks = Ranks(tmp_path, monkeypatch, keep=1)
    ranks.step()
    ranks.step()
    ranks.settle()
    ranks.faults[rank] = "No space left on device"
    ranks.step()
    ranks.step()
    ranks.settle()
    assert [path.name for path in list_steps(ranks.folder)] == ["step_00000002"]
    assert {path.name for path in ranks.folder.iterdir()} == {"latest", "step_00000002"}
    (warning,) = capsys.readouterr().err.splitlines()
    assert "no checkpoint after step 4, the training goes on" in warning
    assert f"the last good one is {ranks.folder / 'step_00000002'}" in warning
    assert f"rank {rank}: No space left on device" in warning
    ranks.faults.clear()
    ranks.step()
    ranks.step()
    ranks.settle()
    assert [path.name for path in list_steps(ranks.folder)] == ["step_00000006"]


def test_a_checkpoint_that_cannot_be_made_whole_is_given_up_by_all(tmp_path, monkeypatch, capsys):
    ranks = Ranks(tmp_path, monkeypatch)

    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(module, "commit", fail)
    ranks.step()
    ranks.step()
    ranks.settle()
    assert ranks.savers[2].last is None
    assert "there is none yet: rank 0: Input/output error" in capsys.readouterr().err
    assert list(ranks.folder.iterdir()) == []


def test_memory_that_is_not_there_for_the_copy_does_not_end_the_training(tmp_path, monkeypatch, capsys):
    ranks = Ranks(tmp_path, monkeypatch)

    def snapshot():
        raise MemoryError("cannot allocate 1 TiB")

    ranks.savers[1]._snapshot = snapshot
    ranks.step()
    ranks.step()
    ranks.settle()
    assert "rank 1: no memory for a copy: cannot allocate 1 TiB" in capsys.readouterr().err


@pytest.mark.parametrize("bad", [0, 1])
def test_a_state_with_numbers_that_are_none_never_becomes_a_checkpoint(tmp_path, monkeypatch, bad):
    """Its loss is known a step later; so is that of the step after, which the state may have spoiled."""
    ranks = Ranks(tmp_path, monkeypatch)
    ranks.held_back[1] = threading.Event()
    ranks.step()
    ranks.step(sound=bad != 0)
    ranks.step(sound=bad != 1)
    ranks.held_back.pop(1).set()
    ranks.settle()
    assert list_steps(ranks.folder) == []
    assert list(ranks.folder.iterdir()) == []


def test_time_decides_on_rank_0_for_all(tmp_path, monkeypatch):
    ranks = Ranks(tmp_path, monkeypatch, every='"10min"')
    assert [ranks.step() for _ in range(5)] == [False] * 5
    ranks.savers[2]._since -= 1000
    assert not ranks.step()
    ranks.savers[0]._since -= 1000
    assert [ranks.step(), ranks.step()] == [False, True]
    ranks.settle()
    assert ranks.savers[1].last[0] == 8


def test_the_copy_is_what_is_saved_and_the_time_it_took_is_recorded(tmp_path, monkeypatch):
    ranks = Ranks(tmp_path, monkeypatch)
    ranks.step()
    ranks.step()
    assert [(rank, step) for rank, step, *_ in ranks.events] == [(0, 1), (1, 1), (2, 1)]
    assert all(begin <= end and num_bytes > 0 for _, _, begin, end, num_bytes in ranks.events)
    ranks.settle()
