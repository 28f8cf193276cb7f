"""How a text becomes token ids: those of a tokenizer of the tokenizers library, or its bytes.

It knows no file but the tokenizer's; what is done with the ids is text.py's and image_index.py's matter.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """What gives a text its ids, from 0 to size - 1.

    Attributes
    ----------
    digest
        Hash of its file, empty for bytes; tokenizers of one digest are equal.
    encode
        Returns a text's ids, without any that stand around a text; special tokens that are written in it are single
        ids.
    """

    digest: str
    size: int = field(compare=False)
    encode: Callable[[str], list[int]] = field(compare=False)


BYTES = Tokenizer("", 256, lambda text: list(text.encode()))
"""Every byte of a text is a token."""


def open_tokenizer(path: Path | None) -> Tokenizer:
    """Open a tokenizer.json; None stands for bytes.

    Raises
    ------
    OSError
        The file cannot be read.
    ValueError
        It is no tokenizer.
    """
    if path is None:
        return BYTES
    from tokenizers import Tokenizer as Library

    content = path.read_bytes()
    try:
        loaded = Library.from_buffer(content)
    except Exception as error:  # the library raises nothing more special
        raise ValueError(f"{path}: is no tokenizer of the tokenizers library: {error}") from None
    loaded.no_padding()
    loaded.no_truncation()
    if getattr(loaded.model, "dropout", None):
        loaded.model.dropout = None  # a text has the same ids whenever and wherever it is read
    return Tokenizer(
        digest=blake2b(content, digest_size=16).hexdigest(),
        size=max(loaded.get_vocab(with_added_tokens=True).values(), default=-1) + 1,
        encode=lambda text: list(loaded.encode(text, add_special_tokens=False).ids),
    )
