"""What a backward puts off: the work that makes weight gradients, recorded per micro-batch and computed when asked.

It knows tensors and the order in which they were met; which layer wants which kernel is deferred_ops.py's matter.
"""

from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, NamedTuple

import torch

_KEY = "hpcpipe.recording"

Gradients = Sequence[torch.Tensor | None]


class Work(NamedTuple):
    """One use of a layer: `kernel(*tensors, *settings)` returns the gradients of `parameters`, None for frozen ones."""

    parameters: tuple[torch.Tensor | None, ...]
    kernel: Callable[..., Gradients]
    tensors: tuple[torch.Tensor, ...]
    settings: tuple[Any, ...]
    versions: list[int]


class Pending:
    """The weight gradients that one backward has put off; it may be computed once, at any later time, in any thread."""

    def __init__(self) -> None:
        self._works: deque[Work] | None = deque()

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensors kept for `compute`, each storage counted once; parameters are not among them."""
        storages = {
            storage.data_ptr(): storage.nbytes()
            for work in self._works or ()
            for storage in (tensor.untyped_storage() for tensor in work.tensors)
        }
        return sum(storages.values())

    def add(
        self,
        parameters: tuple[torch.Tensor | None, ...],
        kernel: Callable[..., Gradients],
        tensors: tuple[torch.Tensor, ...],
        settings: tuple[Any, ...] = (),
    ) -> None:
        """Put off `kernel(*tensors, *settings)`; the tensors must stay unchanged until `compute`."""
        assert self._works is not None, "a recording is closed before it is computed"
        versions = [tensor._version for tensor in tensors]
        self._works.append(Work(parameters, kernel, tensors, settings, versions))

    def compute(self, parameters: Sequence[torch.Tensor], folded: Gradients | None = None) -> list[torch.Tensor | None]:
        """Compute what was put off and return the gradients of `parameters`, in their order; None where unused.

        Parameters
        ----------
        parameters
            Those whose gradients are wanted, each once.
        folded
            The gradients of `parameters` that `torch.autograd.grad` returned inside the recording: the share of layers
            that cannot be deferred. Without it that share is taken to be zero.

        The uses of one parameter are added in the order in which the backward met them, which is autograd's own: the
        sum has the bits of the unsplit backward. Only where a parameter is used at least three times, by deferred and
        by other layers both, does the order differ: the others' share, summed by autograd, comes first.

        Raises
        ------
        RuntimeError
            If it was computed already, or if a kept tensor was changed in place since the backward.
        """
        works, self._works = self._works, None
        if works is None:
            raise RuntimeError("These weight gradients were computed already; a recording can be computed once.")
        place = {id(parameter): index for index, parameter in enumerate(parameters)}
        totals: list[torch.Tensor | None] = [None] * len(place) if folded is None else list(folded)
        with torch.no_grad():
            while works:
                work = works.popleft()  # its tensors are freed before the next one's gradients are made
                _check_unchanged(work)
                for parameter, gradient in zip(
                    work.parameters, work.kernel(*work.tensors, *work.settings), strict=True
                ):
                    if gradient is None or (index := place.get(id(parameter))) is None:
                        continue
                    total = totals[index]
                    totals[index] = gradient if total is None else total + gradient
        return totals


class recording:  # noqa: N801 - used as a function is
    """Let the backwards that this thread starts put their weight gradients off into the `Pending` that is yielded.

    Autograd runs the backward of CPU tensors in the calling thread and that of CUDA tensors in a thread of its own, to
    which it hands the caller's thread-local objects. So what is recorded belongs to the call, whichever thread runs
    it, and other threads' backwards are not touched.

    Raises
    ------
    RuntimeError
        If this thread is recording already: the inner backward's gradients would be missing from the outer one's.
    """

    __slots__ = ("_slot",)

    def __enter__(self) -> Pending:
        self._slot = _slot()
        if self._slot.pending is not None:
            raise RuntimeError(
                "A recording is open in this thread already; close it before the next backward is recorded."
            )
        self._slot.pending = Pending()
        return self._slot.pending

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._slot.pending = None


def current() -> Pending | None:
    """Return the recording of the backward that runs now, or None."""
    return _slot().pending


class _Slot:
    """One calling thread's recording, by reference: a copy of the thread's objects leads to the same slot."""

    __slots__ = ("pending",)

    def __init__(self) -> None:
        self.pending: Pending | None = None


def _slot() -> _Slot:
    if torch._C._is_key_in_tls(_KEY):
        return torch._C._get_obj_in_tls(_KEY)
    slot = _Slot()
    torch._C._stash_obj_in_tls(_KEY, slot)
    return slot


def _check_unchanged(work: Work) -> None:
    for tensor, version in zip(work.tensors, work.versions, strict=True):
        if tensor._version != version:
            raise RuntimeError(
                f"A tensor of shape {tuple(tensor.shape)} that a weight gradient needs was changed in place after its "
                f"backward (version {tensor._version}, recorded at {version}); change it after `compute`, or a copy."
            )
