"""The collectives of the native module: fused gradient buckets, ring reduce-scatter and all-gather.

Importing this package starts MPI, and refuses a native module that was built for another MPI than mpi4py's.
"""

# abi imports mpi4py.MPI before the native module, whose libmpi then resolves to the one already loaded.
from hpcpipe.collective.abi import MpiError, build_config
from hpcpipe.collective.fusion import pack, padded_length, unpack
from hpcpipe.collective.ring import RingBucket

__all__ = ["MpiError", "RingBucket", "build_config", "pack", "padded_length", "unpack"]
