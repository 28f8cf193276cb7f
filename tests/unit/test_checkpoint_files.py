"""What lies on disk: pieces that become other pieces, files that other tools read, and names that appear at once."""

import os
import random
import shutil
from itertools import pairwise
from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoints import SHAPES, damage, job_of, make, values_of
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from hpcpipe.checkpoint import (
    CheckpointError,
    Extent,
    Piece,
    RawTensor,
    Reader,
    Sliced,
    clean,
    faults_of,
    held,
    list_steps,
    local_shape,
    prune,
    read_manifest,
    step_folder,
    whole_shape,
)
from hpcpipe.checkpoint.pieces import PiecesError, gather, slice_of
from hpcpipe.checkpoint.tensor_files import TensorFile, write_tensors


@st.composite
def cuts(draw, shape):
    """Draw how a tensor is cut: into slices of one dimension, and each slice into runs."""
    groups, parts = draw(st.sampled_from([(1, 1), (1, 2), (1, 3), (3, 2), (2, 3)]))
    dim = draw(st.integers(0, len(shape) - 1))
    if shape[dim] % (groups * parts):
        groups, parts = 1, 1
    slices = [None] if parts == 1 else [Sliced(dim, part, parts, groups) for part in range(parts)]
    extents = []
    for sliced in slices:
        size = prod(local_shape(shape, sliced))
        ends = sorted({0, size, *draw(st.lists(st.integers(0, size), max_size=3))})
        extents += [Extent(a, b, sliced) for a, b in pairwise(ends)]
    return extents


@st.composite
def tensors(draw):
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 6, 12]), min_size=1, max_size=3)))
    return shape, draw(cuts(shape)), draw(cuts(shape))


def _cut(whole, extent):
    """Return the elements of a piece by numpy's own split, slices along a dimension whose blocks are cut each."""
    if extent.sliced is not None:
        dim, part, parts, groups = extent.sliced
        blocks = np.split(whole, groups, axis=dim)
        whole = np.concatenate([np.split(block, parts, axis=dim)[part] for block in blocks], axis=dim)
    return whole.reshape(-1)[extent.begin : extent.end]


@settings(max_examples=200, deadline=None)
@given(tensors())
def test_any_cut_of_a_tensor_becomes_any_other(drawn):
    shape, saved, wanted = drawn
    whole = np.arange(prod(shape), dtype=np.uint32).reshape(shape)
    pieces = [Piece("f", str(number), extent) for number, extent in enumerate(saved)]

    def read(piece):
        return _cut(whole, saved[int(piece.key)])

    for extent in wanted:
        found = gather(extent, shape, pieces, read, whole.dtype)
        assert np.array_equal(found, _cut(whole, extent))
        if extent.sliced is not None:
            assert whole_shape(local_shape(shape, extent.sliced), extent.sliced) == shape
            assert np.array_equal(slice_of(whole, extent.sliced).reshape(-1)[extent.begin : extent.end], found)


def _zeros(piece):
    return np.zeros(piece.extent.end - piece.extent.begin)


@pytest.mark.parametrize("missing", [0, 1])
@pytest.mark.parametrize("sliced", [None, Sliced(0, 1, 2)])
def test_elements_that_no_piece_holds_are_told(missing, sliced):
    pieces = [Piece("f", "a", Extent(0, 10)), Piece("f", "b", Extent(10, 24))]
    del pieces[missing]
    with pytest.raises(PiecesError, match="elements"):
        gather(Extent(0, 24 if sliced is None else 12, sliced), (6, 4), pieces, _zeros, np.dtype("f8"))


def test_a_dimension_that_does_not_divide_is_refused():
    with pytest.raises(PiecesError, match="cannot be cut"):
        local_shape((7, 2), Sliced(0, 0, 2))


def test_other_tools_read_every_type_and_shape_as_it_was(tmp_path):
    given = {
        "matrix": torch.randn(3, 5),
        "half": torch.randn(4).to(torch.bfloat16),
        "scalar": torch.tensor(7.0),
        "empty": torch.zeros(0, 3),
        "flags": torch.tensor([True, False, True]),
        "counts": torch.tensor([2**40, -1]),
    }
    codes = {torch.float32: "F32", torch.bfloat16: "BF16", torch.bool: "BOOL", torch.int64: "I64"}
    raw = {
        name: RawTensor(
            codes[value.dtype],
            tuple(value.shape),
            value.reshape(-1).view(torch.uint8).numpy().view(f"u{value.element_size()}"),
        )
        for name, value in given.items()
    }
    entry = write_tensors(tmp_path / "x.safetensors", raw)
    found = load_file(tmp_path / "x.safetensors")
    assert found.keys() == given.keys()
    assert all(torch.equal(found[name], given[name]) and found[name].dtype == given[name].dtype for name in given)
    assert entry.num_bytes == (tmp_path / "x.safetensors").stat().st_size
    with TensorFile(tmp_path / "x.safetensors") as file:
        assert all(np.array_equal(file.elements(name), tensor.elements) for name, tensor in raw.items())
    assert (tmp_path / "x.safetensors").stat().st_mode & 0o777 == tmp_path.stat().st_mode & 0o666


def test_a_checkpoint_holds_what_was_put_in_by_name(tmp_path):
    path = make(tmp_path, job_of(tmp_path), 7, parts=3)
    reader = Reader(path)
    for name, shape in SHAPES.items():
        assert reader.manifest.parameters[name].shape == shape
        for kind in ("exp_avg", "step"):
            entry = reader.manifest.state[kind][name]
            expected = values_of(name, 7, kind)
            assert np.array_equal(reader.elements(name, entry).view(np.float32).reshape(entry.shape), expected)
    assert faults_of(path, reader.manifest, content=True) == []
    assert (tmp_path / "latest").readlink() == Path("step_00000007")
    assert sorted(path.name for path in path.iterdir()) == sorted(["manifest.json", *reader.manifest.files])


@pytest.mark.parametrize("how", ["flipped", "truncated", "longer", "missing"])
def test_a_damaged_file_is_named(tmp_path, how):
    path = make(tmp_path, job_of(tmp_path), 7)
    manifest = read_manifest(path)
    for name in manifest.files:
        whole = (path / name).read_bytes()
        damage(path / name, how)
        (fault,) = faults_of(path, manifest, content=True)
        assert fault.startswith(name)
        assert bool(faults_of(path, manifest, content=False)) == (how != "flipped")
        (path / name).write_bytes(whole)
    assert not faults_of(path, manifest, content=True)


def test_no_flipped_bit_of_a_manifest_is_believed(tmp_path):
    path = make(tmp_path, job_of(tmp_path), 7) / "manifest.json"
    whole, manifest = path.read_bytes(), read_manifest(path.parent)
    draws = random.Random(3)
    for _ in range(300):
        content = bytearray(whole)
        content[draws.randrange(len(content))] ^= 1 << draws.randrange(8)
        path.write_bytes(bytes(content))
        try:
            assert read_manifest(path.parent) == manifest
        except CheckpointError as error:
            assert str(path.parent) in str(error)
    for length in (0, 1, len(whole) // 2, len(whole) - 3):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError):
            read_manifest(path.parent)


def test_a_newer_format_is_refused_by_its_number(tmp_path):
    path = make(tmp_path, job_of(tmp_path), 7)
    text = (path / "manifest.json").read_text()
    (path / "manifest.json").write_text(text.replace('"schema_version": "1.', '"schema_version": "2.'))
    with pytest.raises(CheckpointError, match=r"has format 2\.1\.0, newer than the 1\.1\.0"):
        read_manifest(path)


class _PowerFailure(BaseException):
    pass


def _crash_at(monkeypatch, number):
    """Let the machine die in the number-th call that touches the disk; return how many there were."""
    counted = [0]

    def die_in(original):
        def call(*arguments, **options):
            counted[0] += 1
            if counted[0] == number:
                raise _PowerFailure
            return original(*arguments, **options)

        return call

    monkeypatch.setattr(os, "fsync", die_in(os.fsync))
    monkeypatch.setattr(shutil, "rmtree", die_in(shutil.rmtree))
    for name in ("rename", "replace", "symlink_to", "unlink", "mkdir"):
        monkeypatch.setattr(Path, name, die_in(getattr(Path, name)))
    return counted


@pytest.mark.parametrize("again", [False, True])
def test_a_crash_in_any_call_leaves_a_whole_checkpoint_and_nothing_torn_under_its_name(tmp_path, monkeypatch, again):
    """Step 10 is there; step 20 is written (anew, with `again`) and one of two is removed."""
    job = job_of(tmp_path)
    number, done = 0, False
    while not done:
        number += 1
        folder = tmp_path / str(number)
        make(folder, job, 10)
        if again:
            make(folder, job, 20)
        with monkeypatch.context() as patch:
            counted = _crash_at(patch, number)
            try:
                make(folder, job, 20, created="2026-01-02T00:00:00")
                prune([folder], 1)
                done = True
            except _PowerFailure:
                pass
        found = list_steps(folder)
        assert found, f"crash in call {number}"
        for path in found:
            assert faults_of(path, read_manifest(path), content=True) == []
        clean(folder)
        assert {path.name for path in folder.iterdir()} <= {"step_00000010", "step_00000020", "latest"}
        make(folder, job, 30, created="2026-01-03T00:00:00")
        assert (folder / "latest").readlink() == Path("step_00000030")
    assert counted[0] > 8
    assert [path.name for path in list_steps(folder)] == ["step_00000030", "step_00000020"]


def test_old_checkpoints_go_by_their_time_and_one_that_is_read_stays(tmp_path):
    job = job_of(tmp_path)
    older, newer = tmp_path / "older", tmp_path / "newer"
    for step in (10, 20):
        make(older, job, step)
    read = make(newer, job, 30, created="2026-01-02T00:00:00")
    make(newer, job, 15, created="2026-01-03T00:00:00")  # went back to step 10 in between
    with held(read):
        assert [path.name for path in prune([newer, older], 1)] == ["step_00000020", "step_00000010"]
    assert [path.name for path in list_steps(newer, older)] == ["step_00000015", "step_00000030"]
    assert prune([newer, older], 1) == [read]
    assert step_folder(newer, 15).exists()


def test_what_cannot_be_written_says_the_systems_words(tmp_path):
    with pytest.raises(OSError, match="No such file or directory"):
        write_tensors(tmp_path / "no" / "x.safetensors", {"a": RawTensor("U8", (1,), np.zeros(1, np.uint8))})
