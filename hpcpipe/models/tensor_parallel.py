"""Layers of which every tensor-parallel rank holds a slice, and the loss over a sliced vocabulary.

The layout is Megatron-LM's (Shoeybi et al., arXiv 1909.08053): columns of the first matrix, rows of the second, one sum
behind them in the forward and one before them in the backward. How slices sum is not known here.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional

from hpcpipe.models import deferred_ops
from hpcpipe.models.deferred import DeferredEmbedding, DeferredLinear, _waits, register

IGNORED = -100
"""The target that counts for no loss, torch's own."""


class Slices(Protocol):
    """The ranks that each hold a slice, this one being `index` of `count`; both calls wait for all of them."""

    index: int
    count: int

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Return the sum of all slices' tensors, with the same bits on all, as a new one."""

    def all_gather(self, tensor: Tensor) -> Tensor:
        """Return all slices' tensors stacked in a new first dimension."""


class Sliced(NamedTuple):
    """What `parameter.sliced` says of a sliced parameter: slice `index` of `count` even ones along dimension `dim`.

    With `groups` > 1 the dimension is that many equal blocks, each of which is sliced, as where query, key and value
    share one matrix. A parameter without the attribute is whole on all slices, with the same bits.
    """

    dim: int
    index: int  # type: ignore[assignment]
    count: int  # type: ignore[assignment]
    groups: int = 1


def slice_of(whole: Tensor, sliced: Sliced) -> Tensor:
    """Return the slice of a whole tensor, a copy.

    Raises
    ------
    ValueError
        The dimension does not divide evenly.
    """
    size = whole.shape[sliced.dim]
    if size % (sliced.groups * sliced.count):
        what = f"{sliced.groups} x {sliced.count}" if sliced.groups > 1 else f"{sliced.count}"
        raise ValueError(f"dimension {sliced.dim} of {tuple(whole.shape)} cannot be cut into {what} even parts")
    apart = whole.unflatten(sliced.dim, (sliced.groups, sliced.count, -1))
    return apart.select(sliced.dim + 1, sliced.index).flatten(sliced.dim, sliced.dim + 1).clone()


def whole_of(slices: list[Tensor], sliced: Sliced) -> Tensor:
    """Return the whole tensor of all slices, in their order; `sliced` is that of any of them."""
    apart = [each.unflatten(sliced.dim, (sliced.groups, -1)) for each in slices]
    return torch.cat(apart, dim=sliced.dim + 1).flatten(sliced.dim, sliced.dim + 1)


def cut(layer: nn.Module, name: str, *, dim: int, slices: Slices, groups: int = 1) -> None:
    """Replace a parameter of a layer by this rank's slice of it; a parameter that is None stays so."""
    whole = getattr(layer, name)
    if whole is None:
        return
    sliced = Sliced(dim, slices.index, slices.count, groups)
    parameter = nn.Parameter(slice_of(whole.detach(), sliced), requires_grad=whole.requires_grad)
    parameter.sliced = sliced  # type: ignore[attr-defined]
    setattr(layer, name, parameter)


class _Enter(Function):
    """Give the slices what all of them have: the identity, and the sum of their gradients in the backward."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, slices: Slices) -> Tensor:
        ctx.slices = slices
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.slices.all_reduce(gradient), None


class _Leave(Function):
    """Sum what the slices have; all of them get the gradient."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, slices: Slices) -> Tensor:
        del ctx
        return slices.all_reduce(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        del ctx
        return gradient, None


class _Columns:
    """A Linear whose slice makes some of the outputs from all inputs."""

    slices: Slices

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Return (..., out_features / count) from (..., in_features)."""
        return super().forward(_Enter.apply(input, self.slices))  # type: ignore[misc]


class _Rows:
    """A Linear whose slice makes a share of all outputs from some of the inputs; the bias is added to their sum."""

    slices: Slices
    weight: Tensor
    bias: Any

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Return (..., out_features) from (..., in_features / count)."""
        value = _Leave.apply(self.multiply(input), self.slices)
        return value if self.bias is None else value + self.bias

    def multiply(self, rows: Tensor) -> Tensor:
        """Return this slice's share."""
        return functional.linear(rows, self.weight)


class _Vocabulary:
    """An Embedding whose slice has the rows of some of the tokens; the others' tokens are zeros here."""

    slices: Slices
    weight: Tensor

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Return (..., embedding_dim) from integers (...)."""
        local, inside = _own(input, self.weight.shape[0], self.slices)
        value = super().forward(local).masked_fill(~inside.unsqueeze(-1), 0.0)  # type: ignore[misc]
        return _Leave.apply(value, self.slices)


class ColumnParallelLinear(_Columns, nn.Linear):
    """See _Columns."""


class RowParallelLinear(_Rows, nn.Linear):
    """See _Rows."""


class VocabularyParallelEmbedding(_Vocabulary, nn.Embedding):
    """See _Vocabulary."""


class _DeferredColumns(_Columns, DeferredLinear):
    """With weight gradients that a recording puts off; the input's gradient is summed in B."""


class _DeferredRows(_Rows, DeferredLinear):
    """With a weight gradient that a recording puts off; the bias's stays with B."""

    def multiply(self, rows: Tensor) -> Tensor:
        if not (self.weight.requires_grad and _waits(self, rows, self.weight)):
            return super().multiply(rows)
        return deferred_ops.linear(rows, self.weight, None)


class _DeferredVocabulary(_Vocabulary, DeferredEmbedding):
    """With a weight gradient that a recording puts off."""


register(ColumnParallelLinear, _DeferredColumns)
register(RowParallelLinear, _DeferredRows)
register(VocabularyParallelEmbedding, _DeferredVocabulary)


def enter(value: Tensor, slices: Slices | None) -> Tensor:
    """Return a value that all slices have for several sliced Linears: one sum in the backward, not one for each."""
    return value if slices is None else _Enter.apply(value, slices)


def by_columns(linear: nn.Linear, slices: Slices, *, groups: int = 1, entered: bool = False) -> None:
    """Keep this rank's outputs of a whole Linear, in place; with `entered` its input comes from `enter`."""
    cut(linear, "weight", dim=0, slices=slices, groups=groups)
    cut(linear, "bias", dim=0, slices=slices, groups=groups)
    linear.out_features //= slices.count
    if not entered:
        _become(linear, ColumnParallelLinear, slices)


def by_rows(linear: nn.Linear, slices: Slices) -> None:
    """Keep this rank's inputs of a whole Linear, in place; the bias stays whole."""
    cut(linear, "weight", dim=1, slices=slices)
    linear.in_features //= slices.count
    _become(linear, RowParallelLinear, slices)


def by_vocabulary(embedding: nn.Embedding, slices: Slices) -> None:
    """Keep this rank's tokens of a whole Embedding, in place."""
    cut(embedding, "weight", dim=0, slices=slices)
    embedding.num_embeddings //= slices.count
    _become(embedding, VocabularyParallelEmbedding, slices)


def _become(layer: nn.Module, kind: type[nn.Module], slices: Slices) -> None:
    layer.__class__ = kind
    layer.slices = slices  # type: ignore[assignment]


@contextmanager
def own_draws(slices: Slices | None, like: Tensor) -> Iterator[None]:
    """Draw other random numbers on every slice, for what is sliced; behind it all slices go on with the same ones.

    Everything drawn follows from torch's random state at the entry, so a repeated forward repeats it. Without slices it
    does nothing.
    """
    if slices is None:
        yield
        return
    seed = int(torch.randint(2**62, ()))  # the same on all slices, and moves their common state on
    with torch.random.fork_rng(devices=[like.device] if like.is_cuda else []):
        torch.manual_seed(seed + slices.index)
        yield


def sliced_cross_entropy(logits: Tensor, targets: Tensor, slices: Slices) -> Tensor:
    """Return the cross-entropy summed over the rows, from this rank's columns of the logits.

    Of every row the slices exchange three numbers: the largest logit, the sum of the exponentials relative to it, and
    the target's logit; so nothing overflows that does not in one piece.

    Parameters
    ----------
    logits
        (rows, vocabulary / count), floating.
    targets
        (rows,) integers of the whole vocabulary, or IGNORED.
    """
    return _CrossEntropy.apply(logits, targets, slices)


class _CrossEntropy(Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, slices: Slices) -> Tensor:
        local, inside = _own(targets, logits.shape[1], slices)
        largest = logits.max(dim=1).values
        exponentials = (logits - largest.unsqueeze(1)).exp()
        hit = logits.gather(1, local.unsqueeze(1)).squeeze(1).masked_fill(~inside, 0.0)
        told = slices.all_gather(torch.stack([largest, exponentials.sum(dim=1), hit]))
        most = told[:, 0].max(dim=0).values
        total = (told[:, 1] * (told[:, 0] - most).exp()).sum(dim=0)
        counted = targets != IGNORED
        losses = (total.log() + most - told[:, 2].sum(dim=0)).masked_fill(~counted, 0.0)
        probabilities = exponentials.mul_(((largest - most).exp() / total).unsqueeze(1))
        ctx.save_for_backward(probabilities, local, inside, counted)
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        probabilities, local, inside, counted = ctx.saved_tensors
        of_logits = probabilities.clone()
        of_logits.scatter_add_(1, local.unsqueeze(1), -inside.to(of_logits.dtype).unsqueeze(1))
        return of_logits.mul_((counted * gradient).unsqueeze(1)), None, None


def _own(tokens: Tensor, rows: int, slices: Slices) -> tuple[Tensor, Tensor]:
    """Return the tokens' rows in this slice, 0 for those of others, and which are its own."""
    local = tokens - slices.index * rows
    inside = (local >= 0) & (local < rows)
    return local.where(inside, 0), inside
