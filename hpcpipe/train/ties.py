"""Which parameters of this rank are tied, and with which other stages: from the chain of layers and how it is cut.

It makes the communicators of the stages that share a parameter; what they exchange is bucket.py's.
"""

from collections.abc import Sequence

from mpi4py import MPI
from torch import nn

from hpcpipe.models import Layer, ties_of
from hpcpipe.runtime import Mesh
from hpcpipe.train.buckets import Tie


def find_ties(
    layers: Sequence[Layer],
    pieces: Sequence[Sequence[range]],
    built: Sequence[Sequence[nn.Module]],
    parameters: Sequence[Sequence[nn.Parameter]],
    *,
    mesh: Mesh,
) -> list[Tie]:
    """Return the ties that have a use on this rank (collective over the pipeline).

    Parameters
    ----------
    pieces
        The layers of every stage by chunk.
    built, parameters
        The modules and the trained parameters of this rank's chunks.
    """
    stage = mesh.place.stage
    places = {
        index: (s, c, i) for s, rest in enumerate(pieces) for c, p in enumerate(rest) for i, index in enumerate(p)
    }
    numbers = {id(p): (chunk, number) for chunk, own in enumerate(parameters) for number, p in enumerate(own)}
    ties = []
    for uses in ties_of(layers).values():
        stages = {places[index][0] for index, _ in uses}
        group = None
        if len(stages) > 1:
            group = MPI.Intracomm(mesh.forward.Split(0 if stage in stages else MPI.UNDEFINED, stage))
            if group != MPI.COMM_NULL:
                group.Set_errhandler(MPI.ERRORS_RETURN)
        if stage not in stages:
            continue
        mine = []
        for index, path in uses:
            where, chunk, position = places[index]
            if where == stage:
                mine.append(numbers[id(built[chunk][position].get_parameter(path))])
        ties.append(Tie(mine, group))
    return ties
