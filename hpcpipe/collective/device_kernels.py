"""The arithmetic of gradient buckets on a GPU: kernels of kernels.cu through cupy, or torch's where that is missing.

It enqueues on the stream that it is given and never waits; it knows no MPI.
"""

import warnings
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
import torch

TYPES = {
    torch.float32: "Float32",
    torch.float64: "Float64",
    torch.float16: "Float16",
    torch.bfloat16: "BFloat16",
}
"""The types of buckets, by their names in kernels.cu."""

MOST_SOURCES, MOST_PARTS, TILE, THREADS = 256, 200, 4096, 256
"""As in kernels.cu: arguments of a kernel have 4 KiB."""

OLDEST_CUPY = 14
"""It takes streams by CUDA's protocol, and the id of NCCL as bytes."""

SOURCES = np.dtype([("at", "<u8", MOST_SOURCES), ("count", "<u8")])
PARTS = np.dtype([("at", "<u8", MOST_PARTS), ("begin", "<u8", MOST_PARTS + 1), ("count", "<u8")])
_MOST_BLOCKS = 2**31 - 1
"""In CUDA's first dimension; kernels go on with what fewer blocks have left."""


class Kernels(Protocol):
    """Sums and copies on a stream. Tensors are contiguous and, of one call, on one device; they stay until it is done.

    They round as the native module does: to nearest even, 16-bit types added in fp32, denormals kept.

    Attributes
    ----------
    instead_of
        Why faster ones are not used; empty if they are.
    """

    instead_of: str

    def add(self, into: torch.Tensor, sources: Sequence[torch.Tensor], stream: Any) -> None:
        """Write (sources[0] + sources[1]) + ... into `into`, which may be one of the two or more, rounded once."""

    def pack(self, tensors: Sequence[torch.Tensor], flat: torch.Tensor, accumulate: bool, stream: Any) -> None:
        """Write the tensors one after the other into `flat`, or add them to it."""

    def unpack(self, flat: torch.Tensor, tensors: Sequence[torch.Tensor], stream: Any) -> None:
        """Give every tensor its part of `flat`, in order."""


def add_line(name: str, number: str, *, many: bool) -> str:
    """Return the line that makes a kernel that adds."""
    return f"HPCPIPE_ADD_{'MANY' if many else 'TWO'}({name}, {number})\n"


def move_line(name: str, flat: str, part: str, *, into_flat: bool, adds: bool) -> str:
    """Return the line that makes a kernel that packs or unpacks."""
    return f"HPCPIPE_MOVE_PARTS({name}, {flat}, {part}, {str(into_flat).lower()}, {str(adds).lower()})\n"


@cache
def kernel_text() -> str:
    """Return the text of kernels.cu."""
    return (files("hpcpipe.collective") / "kernels.cu").read_text(encoding="utf-8")


def sources_of(sources: Sequence[torch.Tensor]) -> np.ndarray:
    """Return the kernel's argument of that name."""
    found = np.zeros((), SOURCES)
    found["at"][: len(sources)] = [source.data_ptr() for source in sources]
    found["count"] = len(sources)
    return found


def parts_of(tensors: Sequence[torch.Tensor]) -> np.ndarray:
    """Return the kernel's argument of that name."""
    found = np.zeros((), PARTS)
    found["at"][: len(tensors)] = [tensor.data_ptr() for tensor in tensors]
    found["begin"][1 : len(tensors) + 1] = np.cumsum([tensor.numel() for tensor in tensors])
    found["count"] = len(tensors)
    return found


class CupyKernels:
    """Kernels that NVRTC makes of kernels.cu at their first use, a second or so each; cupy keeps them on disk.

    A list of tensors is packed by one kernel, or by one for every 200. The first is made at once: what is missing shows
    before anything has begun.
    """

    instead_of = ""

    def __init__(self) -> None:
        self._cupy = load_cupy()
        self._made: dict[str, Any] = {}
        self._streams: dict[int, Any] = {}
        self._kernel("add_two_Float32", add_line("add_two_Float32", "Float32", many=False)).compile()

    def add(self, into: torch.Tensor, sources: Sequence[torch.Tensor], stream: Any) -> None:
        """Write the sum of the sources into `into`, in their order."""
        number, length = TYPES[into.dtype], into.numel()
        vectors = -(-length // (16 // into.itemsize))
        if len(sources) == 2:
            kernel = self._kernel(f"add_two_{number}", add_line(f"add_two_{number}", number, many=False))
            pointers = [np.uint64(tensor.data_ptr()) for tensor in (into, *sources)]
            self._launch(kernel, -(-vectors // (2 * THREADS)), (*pointers, np.uint64(length)), stream)
            return
        if len(sources) > MOST_SOURCES:
            raise ValueError(f"cannot add {len(sources)} buffers at once on a GPU; {MOST_SOURCES} is the most")
        kernel = self._kernel(f"add_many_{number}", add_line(f"add_many_{number}", number, many=True))
        arguments = (np.uint64(into.data_ptr()), sources_of(sources), np.uint64(length))
        self._launch(kernel, -(-vectors // THREADS), arguments, stream)

    def pack(self, tensors: Sequence[torch.Tensor], flat: torch.Tensor, accumulate: bool, stream: Any) -> None:
        """Write or add the tensors to `flat`."""
        self._move(flat, tensors, stream, into_flat=True, adds=accumulate)

    def unpack(self, flat: torch.Tensor, tensors: Sequence[torch.Tensor], stream: Any) -> None:
        """Give every tensor its part of `flat`."""
        self._move(flat, tensors, stream, into_flat=False, adds=False)

    def _move(
        self, flat: torch.Tensor, tensors: Sequence[torch.Tensor], stream: Any, *, into_flat: bool, adds: bool
    ) -> None:
        at, flat_type = 0, TYPES[flat.dtype]
        for part, run in runs(tensors):
            name = f"{'pack' if into_flat else 'unpack'}{'_add' * adds}_{flat_type}_{part}"
            kernel = self._kernel(name, move_line(name, flat_type, part, into_flat=into_flat, adds=adds))
            length = sum(tensor.numel() for tensor in run)
            if length:
                pointer = np.uint64(flat.data_ptr() + at * flat.itemsize)
                self._launch(kernel, -(-length // TILE), (pointer, parts_of(run)), stream)
            at += length

    def _kernel(self, name: str, line: str) -> Any:
        kernel = self._made.get(name)
        if kernel is None:
            kernel = self._made[name] = self._cupy.RawKernel(kernel_text() + line, name, options=("--std=c++17",))
        return kernel

    def _launch(self, kernel: Any, blocks: int, arguments: tuple[Any, ...], stream: Any) -> None:
        number = int(stream.cuda_stream)
        if number not in self._streams:
            self._streams[number] = self._cupy.cuda.Stream.from_external(_CudaStream(stream))
        with self._streams[number]:
            kernel((max(1, min(blocks, _MOST_BLOCKS)),), (THREADS,), arguments)


class TorchKernels:
    """The same with torch's kernels: several for a sum of 16-bit types, and one for every tensor that is packed.

    `instead_of` says why cupy's are not used.
    """

    def __init__(self, instead_of: str = "") -> None:
        self.instead_of = instead_of

    def add(self, into: torch.Tensor, sources: Sequence[torch.Tensor], stream: Any) -> None:
        """Write the sum of the sources into `into`, in their order."""
        with torch.cuda.stream(stream):
            if len(sources) == 2 and into.itemsize > 2:
                torch.add(sources[0], sources[1], out=into)
                return
            total = sources[0].to(torch.float32 if into.itemsize == 2 else into.dtype, copy=True)
            for source in sources[1:]:
                total += source
            into.copy_(total)

    def pack(self, tensors: Sequence[torch.Tensor], flat: torch.Tensor, accumulate: bool, stream: Any) -> None:
        """Write or add the tensors to `flat`."""
        at = 0
        with torch.cuda.stream(stream):
            for tensor in tensors:
                part = flat[at : at + tensor.numel()]
                _ = part.add_(tensor.view(-1)) if accumulate else part.copy_(tensor.view(-1))
                at += tensor.numel()

    def unpack(self, flat: torch.Tensor, tensors: Sequence[torch.Tensor], stream: Any) -> None:
        """Give every tensor its part of `flat`."""
        at = 0
        with torch.cuda.stream(stream):
            for tensor in tensors:
                tensor.view(-1).copy_(flat[at : at + tensor.numel()])
                at += tensor.numel()


def load_cupy() -> Any:
    """Return cupy.

    Raises
    ------
    ImportError
        It is not installed, does not find its libraries, or is too old.
    """
    import cupy

    if int(cupy.__version__.partition(".")[0]) < OLDEST_CUPY:
        raise ImportError(f"cupy {cupy.__version__} is installed, but {OLDEST_CUPY} or newer is needed")
    return cupy


def make_kernels() -> Kernels:
    """Return the kernels for the current GPU: cupy's where it is installed and works, with a warning where it does not.

    torch's give the same bits.
    """
    if find_spec("cupy") is None:
        return TorchKernels("cupy is not installed")
    try:
        return CupyKernels()
    except Exception as error:  # of its many kinds: a library that is missing, of another CUDA, or a cache without room
        why = f"cupy does not work here ({' '.join(str(error).split())[:300] or type(error).__name__})"
        warnings.warn(f"gradient buckets are packed and summed by torch's kernels, because {why}", stacklevel=2)
        return TorchKernels(why)


def runs(tensors: Sequence[torch.Tensor]) -> list[tuple[str, list[torch.Tensor]]]:
    """Cut a list into runs of one type and at most as many tensors as one kernel takes, in order."""
    found: list[tuple[str, list[torch.Tensor]]] = []
    for tensor in tensors:
        number = TYPES[tensor.dtype]
        if not found or found[-1][0] != number or len(found[-1][1]) == MOST_PARTS:
            found.append((number, []))
        found[-1][1].append(tensor)
    return found


class _CudaStream:
    """A stream of torch as cupy takes it, also from a torch that does not know the protocol."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, int(self._stream.cuda_stream)
