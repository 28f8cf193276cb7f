"""Reads tensors of one checkpoint, whole or in part, however they were cut when they were saved.

Files are mapped, so only what is asked for comes from the disk. It needs no framework: elements are raw.
"""

from math import prod
from pathlib import Path

import numpy as np

from hpcpipe.checkpoint.manifest import CheckpointError, Manifest, TensorEntry, read_manifest
from hpcpipe.checkpoint.pieces import Extent, Piece, PiecesError, gather
from hpcpipe.checkpoint.tensor_files import Note, TensorFile, check_file, element_type, quiet


class Reader:
    """One checkpoint.

    Raises
    ------
    CheckpointError
        Its manifest cannot be used.
    """

    def __init__(self, folder: Path, manifest: Manifest | None = None) -> None:
        self.folder = folder
        self.manifest = read_manifest(folder) if manifest is None else manifest
        self._files: dict[str, TensorFile] = {}

    def elements(self, name: str, entry: TensorEntry, extent: Extent | None = None) -> np.ndarray:
        """Return elements of a tensor, flat; all of them without `extent`.

        Raises
        ------
        CheckpointError
            They are not all there.
        """
        wanted = Extent(0, prod(entry.shape)) if extent is None else extent
        try:
            return gather(wanted, entry.shape, entry.pieces, self._read, element_type(entry.dtype))
        except (PiecesError, CheckpointError) as error:
            raise CheckpointError(f"{self.folder}: {name} cannot be read: {error}") from None

    def _read(self, piece: Piece) -> np.ndarray:
        if piece.file not in self._files:
            self._files[piece.file] = TensorFile(self.folder / piece.file)
        return self._files[piece.file].elements(piece.key)


def faults_of(
    folder: Path,
    manifest: Manifest,
    *,
    content: bool,
    part: tuple[int, int] = (0, 1),
    note: Note = quiet,
) -> list[str]:
    """Return what is wrong with the files of a checkpoint.

    Parameters
    ----------
    content
        Whether they are read and their hashes compared, or only their sizes.
    part
        (i, n): only files i, i + n, i + 2n and so on, so that n ranks can share the work.
    note
        Called now and then while it goes on.
    """
    names = sorted(manifest.files)[part[0] :: part[1]]
    found = [check_file(folder / name, manifest.files[name], content=content, note=note) for name in names]
    return [fault for fault in found if fault]
