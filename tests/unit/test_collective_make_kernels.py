"""Which kernels gradient buckets have, and whether there is NCCL, where cupy is missing or does not work."""

import sys
import types

import pytest

from hpcpipe.collective import device_kernels
from hpcpipe.collective.device_kernels import CupyKernels, TorchKernels, make_kernels
from hpcpipe.collective.nccl import why_missing


class _Kernel:
    def __init__(self, text: str, name: str, options: tuple[str, ...]) -> None:
        self.name, self.compiled = name, 0

    def compile(self) -> None:
        self.compiled += 1


def _cupy(monkeypatch: pytest.MonkeyPatch, kernel: type, version: str = "14.2.0") -> None:
    module = types.ModuleType("cupy")
    module.RawKernel = kernel  # type: ignore[attr-defined]
    module.__version__ = version  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.setattr(device_kernels, "find_spec", lambda _name: object())


def test_without_cupy_they_are_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_kernels, "find_spec", lambda _name: None)
    kernels = make_kernels()
    assert isinstance(kernels, TorchKernels)
    assert kernels.instead_of == "cupy is not installed"


def test_with_cupy_the_first_is_compiled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    _cupy(monkeypatch, _Kernel)
    kernels = make_kernels()
    assert isinstance(kernels, CupyKernels)
    assert [(made.name, made.compiled) for made in kernels._made.values()] == [("add_two_Float32", 1)]
    assert not kernels.instead_of


def test_with_a_cupy_that_cannot_compile_they_are_torchs_and_a_warning_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Broken(_Kernel):
        def compile(self) -> None:
            raise RuntimeError("libnvrtc.so.13:\n cannot open shared object file")

    _cupy(monkeypatch, Broken)
    with pytest.warns(UserWarning, match=r"torch's kernels, because cupy.*libnvrtc.so.13: cannot open shared"):
        kernels = make_kernels()
    assert isinstance(kernels, TorchKernels)
    assert "libnvrtc" in kernels.instead_of


def test_with_a_cupy_that_cannot_be_imported_they_are_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)  # its import raises
    monkeypatch.setattr(device_kernels, "find_spec", lambda _name: object())
    with pytest.warns(UserWarning, match="cupy does not work here"):
        assert isinstance(make_kernels(), TorchKernels)


def test_a_cupy_that_is_too_old_is_named_with_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    _cupy(monkeypatch, _Kernel, version="13.6.0")
    with pytest.warns(UserWarning, match=r"cupy 13\.6\.0 is installed, but 14 or newer"):
        assert isinstance(make_kernels(), TorchKernels)
    assert "13.6.0" in why_missing()


@pytest.mark.parametrize("available", [True, False])
def test_nccl_is_there_where_cupy_says_so(monkeypatch: pytest.MonkeyPatch, available: bool) -> None:
    _cupy(monkeypatch, _Kernel)
    room, nccl = types.ModuleType("cupy.cuda"), types.ModuleType("cupy.cuda.nccl")
    nccl.available = available  # type: ignore[attr-defined]
    room.nccl = nccl  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy.cuda", room)
    monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", nccl)
    assert why_missing() == ("" if available else "cupy finds no NCCL")
