"""The collectives of the native module: fused gradient buckets that ranks sum and share without blocking.

Importing this package starts MPI, and refuses a native module that was built for another MPI than mpi4py's.
"""

# abi imports mpi4py.MPI before the native module, whose libmpi then resolves to the one already loaded.
from hpcpipe.collective.abi import MpiError, build_config
from hpcpipe.collective.bucket import CollectiveBucket
from hpcpipe.collective.fusion import pack, padded_length, square_sum, unpack
from hpcpipe.collective.group import Group
from hpcpipe.collective.measure import measured_costs

__all__ = [
    "CollectiveBucket",
    "Group",
    "MpiError",
    "build_config",
    "measured_costs",
    "pack",
    "padded_length",
    "square_sum",
    "unpack",
]
