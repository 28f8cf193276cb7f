"""What crosses a stage boundary besides one tensor: tuples, lists and dicts of tensors, None and plain values.

A value is taken apart into its tensors and a text that says how they fit together, so that one message carries all of
it. Types of containers are kept; nothing is pickled, and no array library is needed.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

ONE_TENSOR = ""
"""The structure of a value that is a tensor itself."""

_PLAIN = (type(None), bool, int, float, str)
_KNOWN = (tuple, list, dict, *_PLAIN)
_TENSOR, _TUPLE, _LIST = "t", "(", "["


def take_apart(value: Any) -> tuple[str, list[Any]]:
    """Return the structure of a value and its tensors; a tensor is whatever is no container and no plain value.

    Raises
    ------
    ValueError
        A dict has keys that are no strings, or a container is of a type that the other side could not make again.
    """
    if not isinstance(value, _KNOWN):
        return ONE_TENSOR, [value]
    tensors: list[Any] = []
    return json.dumps(_describe(value, tensors, "the value"), separators=(",", ":")), tensors


def put_together(structure: str, tensors: Sequence[Any]) -> Any:
    """Return the value of a structure and its tensors."""
    if structure == ONE_TENSOR:
        return tensors[0]
    return _rebuild(_parsed(structure), iter(tensors))


def tensors_of(value: Any) -> list[Any]:
    """Return the tensors of a value, in order."""
    return take_apart(value)[1]


def map_tensors(value: Any, function: Callable[[Any], Any]) -> Any:
    """Return the value with `function` of every tensor in its place."""
    if not isinstance(value, _KNOWN):
        return function(value)
    structure, tensors = take_apart(value)
    return put_together(structure, [function(tensor) for tensor in tensors])


def _describe(value: Any, tensors: list[Any], where: str) -> Any:
    if type(value) in _PLAIN:
        return value
    if type(value) in (tuple, list):
        inside = [_describe(each, tensors, f"{where}[{index}]") for index, each in enumerate(value)]
        return [_TUPLE if type(value) is tuple else _LIST, *inside]
    if type(value) is dict:
        if not all(type(key) is str for key in value):
            raise ValueError(f"{where} has keys that are no strings: {list(value)[:4]}; stages exchange names only")
        return {key: _describe(each, tensors, f"{where}[{key!r}]") for key, each in value.items()}
    if isinstance(value, (tuple, list, dict)):
        raise ValueError(
            f"{where} is a {type(value).__name__}, which the next stage could not make again; let the layer return a "
            "plain tuple, list or dict"
        )
    tensors.append(value)
    return [_TENSOR]


@lru_cache(maxsize=256)
def _parsed(structure: str) -> Any:
    return json.loads(structure)


def _rebuild(node: Any, tensors: Iterator[Any]) -> Any:
    if type(node) is dict:
        return {key: _rebuild(each, tensors) for key, each in node.items()}
    if type(node) is not list:
        return node
    tag, *inside = node
    if tag == _TENSOR:
        return next(tensors)
    parts = [_rebuild(each, tensors) for each in inside]
    return tuple(parts) if tag == _TUPLE else parts
