"""Checkpoints: what one is on disk, how it is written whole or not at all, found, checked and read in any layout."""

from hpcpipe.checkpoint.choose import Resume, choose, judge
from hpcpipe.checkpoint.find import AUTO, candidates, earlier_starts, good_one_before, steps_at
from hpcpipe.checkpoint.fit import check_fit, samples_per_step, tokenizer_hash
from hpcpipe.checkpoint.folder import (
    FOLDER,
    clean,
    commit,
    discard,
    held,
    list_steps,
    make_partial,
    partial_bytes,
    prune,
    step_folder,
)
from hpcpipe.checkpoint.manifest import CheckpointError, Manifest, TensorEntry, read_manifest
from hpcpipe.checkpoint.part import MODEL, Held, merge_parts, write_part
from hpcpipe.checkpoint.pieces import Extent, Piece, Sliced, local_shape, whole_shape
from hpcpipe.checkpoint.reader import Reader, faults_of
from hpcpipe.checkpoint.tensor_files import DTYPES, RawTensor

__all__ = [
    "AUTO",
    "DTYPES",
    "FOLDER",
    "MODEL",
    "CheckpointError",
    "Extent",
    "Held",
    "Manifest",
    "Piece",
    "RawTensor",
    "Reader",
    "Resume",
    "Sliced",
    "TensorEntry",
    "candidates",
    "check_fit",
    "choose",
    "clean",
    "commit",
    "discard",
    "earlier_starts",
    "faults_of",
    "good_one_before",
    "held",
    "judge",
    "list_steps",
    "local_shape",
    "make_partial",
    "merge_parts",
    "partial_bytes",
    "prune",
    "read_manifest",
    "samples_per_step",
    "step_folder",
    "steps_at",
    "tokenizer_hash",
    "whole_shape",
    "write_part",
]
