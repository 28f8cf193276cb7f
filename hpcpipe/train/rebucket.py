"""Carry what updates need from the shards of old buckets over to those of a new one that holds the same parameters.

Every rank sends each element that it kept to the replica that keeps it from now on, and nothing else: no rank ever
holds more than its shards. It knows neither why buckets are made anew nor which parameters share one.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np
import torch
from mpi4py import MPI

from hpcpipe.train.bucket import Bucket


class _Piece(NamedTuple):
    """Elements that lie side by side before and after, of one owner each time; `begin`s count within the shards."""

    source: int
    target: int
    bucket: Bucket
    old_begin: int
    new_begin: int
    length: int


@torch.no_grad()
def carry_over(old: Sequence[Bucket], new: Bucket, scalars: Mapping[str, float], comm: MPI.Intracomm) -> None:
    """Give a new bucket what old ones keep of its parameters (collective over the replicas).

    Parameters
    ----------
    old
        Buckets that no other stage has a part in and that together hold the parameters of `new`.
    scalars
        What each shard keeps one value of, from `common_scalars`.
    """
    pieces = list(_pieces(old, new, comm.size))
    going = [[piece for piece in pieces if (piece.source, piece.target) == (comm.rank, r)] for r in range(comm.size)]
    coming = [[piece for piece in pieces if (piece.source, piece.target) == (r, comm.rank)] for r in range(comm.size)]
    for name, value in new.states.items():
        if value.ndim == 0:
            if name in scalars:
                value.fill_(scalars[name])
            continue
        sent = torch.zeros(_count(going), dtype=value.dtype)
        at = 0
        for piece in chain(*going):
            kept = piece.bucket.states.get(name)
            if kept is not None:  # what was not kept before is zero
                sent[at : at + piece.length] = kept[piece.old_begin : piece.old_begin + piece.length]
            at += piece.length
        received = torch.empty(_count(coming), dtype=value.dtype)
        comm.Alltoallv([_bytes(sent), _sizes(going, value)], [_bytes(received), _sizes(coming, value)])
        at = 0
        for piece in chain(*coming):
            value[piece.new_begin : piece.new_begin + piece.length] = received[at : at + piece.length]
            at += piece.length


def common_scalars(buckets: Sequence[Bucket], comm: MPI.Intracomm) -> dict[str, float]:
    """Return what all shards keep one value of, such as Adam's count of steps (collective over the replicas).

    A shard of padding alone may lag behind, as a checkpoint has nothing for it; so the largest one stands.
    """
    found: dict[str, float] = {}
    for bucket in buckets:
        for name, value in bucket.states.items():
            if value.ndim == 0:
                found[name] = max(found.get(name, -np.inf), float(value))
    names = sorted(found)
    values = np.array([found[name] for name in names])
    comm.Allreduce(MPI.IN_PLACE, values, op=MPI.MAX)
    return dict(zip(names, values.tolist(), strict=True))


def _pieces(old: Sequence[Bucket], new: Bucket, count: int) -> Iterator[_Piece]:
    """Yield the parts of a new bucket that no border of a parameter or of a shard cuts, the same on all ranks."""
    places = {
        id(parameter): (bucket, begin)
        for bucket in old
        for parameter, begin in zip(bucket.parameters, _begins(bucket.parameters), strict=True)
    }
    new_length = len(new.values) // count
    for parameter, new_at in zip(new.parameters, _begins(new.parameters), strict=True):
        bucket, old_at = places[id(parameter)]
        old_length = len(bucket.values) // count
        done = 0
        while done < parameter.numel():
            source, old_begin = divmod(old_at + done, old_length)
            target, new_begin = divmod(new_at + done, new_length)
            length = min(parameter.numel() - done, old_length - old_begin, new_length - new_begin)
            yield _Piece(source, target, bucket, old_begin, new_begin, length)
            done += length


def _begins(parameters: Sequence[torch.nn.Parameter]) -> list[int]:
    """Return the first element of each parameter in a bucket."""
    return [0, *accumulate(parameter.numel() for parameter in parameters)][:-1]


def _count(by_rank: Sequence[Sequence[_Piece]]) -> int:
    return sum(piece.length for piece in chain(*by_rank))


def _sizes(by_rank: Sequence[Sequence[_Piece]], value: torch.Tensor) -> list[int]:
    return [value.element_size() * sum(piece.length for piece in pieces) for pieces in by_rank]


def _bytes(values: torch.Tensor) -> np.ndarray:
    return values.view(torch.uint8).numpy()
