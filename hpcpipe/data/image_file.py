"""One image: its size from its first bytes, and its pixels as patches; Pillow decodes.

It knows neither records nor batches.
"""

from dataclasses import dataclass
from io import BytesIO
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

_ORIENTATION = 0x0112
_TURNED = 5
"""From this value on, the tag says that rows and columns are to be swapped (Exif 2.3, 4.6.4)."""


class ImageError(ValueError):
    """The bytes are no image that can be used."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """How images become patches.

    An image keeps its proportions: each side is scaled to the nearest multiple of patch · merge pixels. Sides longer
    than `max_side` are an error, or with `shrink` scaled down to it.
    """

    patch: int
    merge: int
    channels: int
    max_side: int
    shrink: bool

    def grids(self, width: NDArray[np.int64], height: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
        """Return the rows and columns of images in patches."""
        longest = np.maximum(np.maximum(width, height), 1)
        scale = np.minimum(longest, self.max_side)
        unit = self.patch * self.merge
        most = max(1, self.max_side // unit)

        def along(side: NDArray[np.int64]) -> NDArray[np.int64]:
            squares = (side * scale * 2 + longest * unit) // (
                2 * longest * unit
            )  # side · scale / longest / unit, rounded
            return np.clip(squares, 1, most) * self.merge

        return along(height), along(width)


def size_of(file: IO[bytes]) -> tuple[int, int]:
    """Return width and height in pixels of an image as it is to be seen, without decoding it.

    Raises
    ------
    ImageError
        It is no image.
    """
    image = _opened(file)
    width, height = image.size
    return (height, width) if _orientation(image) >= _TURNED else (width, height)


def patches_of(
    content: bytes, geometry: Geometry, *, size: tuple[int, int], grid: tuple[int, int]
) -> NDArray[np.uint8]:
    """Decode an image; return (rows · columns, channels · patch²), in the order that models/vit.py describes.

    Raises
    ------
    ImageError
        It cannot be decoded, or is not of the size that it had when it was indexed.
    """
    from PIL import Image, ImageOps

    image = _opened(BytesIO(content))
    try:
        if _orientation(image) > 1:
            image = ImageOps.exif_transpose(image)
        if image.size != size:
            raise ImageError(
                f"it has {_by(image.size)} pixels and had {_by(size)} when the records were indexed; touch their file, "
                "and they are indexed again"
            )
        rows, columns = grid
        wanted = columns * geometry.patch, rows * geometry.patch
        image = _flat(image).convert("L" if geometry.channels == 1 else "RGB")
        if image.size != wanted:
            image = image.resize(wanted, Image.Resampling.BILINEAR)
    except (OSError, SyntaxError, ValueError) as error:
        raise error if isinstance(error, ImageError) else ImageError(f"it cannot be decoded ({error})") from None
    merge, patch, channels = geometry.merge, geometry.patch, geometry.channels
    pixels = np.asarray(image, dtype=np.uint8)
    cut = pixels.reshape(rows // merge, merge, patch, columns // merge, merge, patch, channels)
    return np.ascontiguousarray(cut.transpose(0, 3, 1, 4, 6, 2, 5)).reshape(rows * columns, channels * patch * patch)


def _opened(file: IO[bytes]) -> Any:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise ImageError(
            'images are decoded by Pillow, which is not installed: pip install "hpcpipe[images]"'
        ) from None
    try:
        return Image.open(file)
    except UnidentifiedImageError:
        raise ImageError("no image that Pillow knows") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ImageError(f"it cannot be read ({error})") from None


def _orientation(image: Any) -> int:
    """Return the orientation that the image's head holds; for a tag behind the pixels of a PNG all must be decoded."""
    return int(image.getexif().get(_ORIENTATION, 1)) if "exif" in image.info else 1


def _flat(image: Any) -> Any:
    """Return the image on white, if parts of it are transparent."""
    if image.mode not in ("RGBA", "LA", "PA") and "transparency" not in image.info:
        return image
    from PIL import Image

    image = image.convert("RGBA")
    ground = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(ground, image)


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"
