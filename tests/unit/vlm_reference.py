"""A vision-language model written down record by record: nothing packed, attention as a matrix.

It takes the parameters of hpcpipe's layers and shares none of their code: patches are a convolution, for one.
"""

import math

import torch
from torch.nn import functional

BEGIN, END = 256, 257


def loss_of(named, sizes, records, count):
    """Return the sum of the records' losses over `count`; a record is its pictures (h, w, c) and its parts of text."""
    return sum(_loss(named, sizes, pictures, parts) for pictures, parts in records) / count


def logits_of(named, sizes, pictures, parts):
    """Return logits (tokens, vocabulary) of one record and its tokens, None for those of pictures.

    `parts` are the texts before, between and behind the pictures.
    """
    images = [_see(named, sizes, picture) for picture in pictures]
    tokens = [BEGIN, *parts[0].encode()]
    for image, part in zip(images, parts[1:], strict=True):
        tokens += [None] * len(image) + list(part.encode())
    tokens.append(END)
    rows, seen = [], iter([row for image in images for row in image])
    for place, token in enumerate(tokens):
        row = next(seen) if token is None else named["projector.token.weight"][token]
        rows.append(row + named["projector.position.weight"][place])
    value = torch.stack(rows)
    for layer in range(sizes.layers):
        value = _block(named, f"language.{layer}.block", value, sizes.heads, causal=True)
    return _norm(named, "head.norm", value) @ named["head.project.weight"].T, tokens


def _loss(named, sizes, pictures, parts):
    logits, tokens = logits_of(named, sizes, pictures, parts)
    return sum(
        -functional.log_softmax(logits[place - 1], dim=-1)[token]
        for place, token in enumerate(tokens)
        if place > 0 and token is not None
    )


def _see(named, sizes, picture):
    """Return the language model's tokens of one picture."""
    dim, patch, merge = sizes.encoder_dim, sizes.patch, sizes.merge
    image = torch.as_tensor(picture).permute(2, 0, 1).float() / 127.5 - 1
    kernel = named["patches.embed.weight"].view(dim, sizes.channels, patch, patch)
    value = functional.conv2d(image[None], kernel, named["patches.embed.bias"], stride=patch)[0].permute(1, 2, 0)
    rows, columns = value.shape[:2]
    where = torch.tensor([[_position(r, dim) + _position(c, dim) for c in range(columns)] for r in range(rows)])
    value = (value + where).reshape(rows * columns, dim)
    for layer in range(sizes.encoder_layers):
        value = _block(named, f"encoder.{layer}.block", value, sizes.encoder_heads, causal=False)
    value = _norm(named, "projector.norm", value).view(rows, columns, dim)
    squares = [
        torch.cat([value[r + i, c + j] for i in range(merge) for j in range(merge)])
        for r in range(0, rows, merge)
        for c in range(0, columns, merge)
    ]
    hidden = functional.gelu(_linear(named, "projector.project_in", torch.stack(squares)), approximate="tanh")
    return _linear(named, "projector.project_out", hidden)


def _position(number, dim):
    """Return half of a position's values: sines, then cosines, of a quarter of the width each."""
    angles = [number / 10_000 ** (k / (dim // 4)) for k in range(dim // 4)]
    return [math.sin(a) for a in angles] + [math.cos(a) for a in angles]


def _block(named, name, value, heads, *, causal):
    count, dim = value.shape
    query, key, content = _linear(named, f"{name}.attention_in", _norm(named, f"{name}.norm_1", value)).split(dim, -1)
    mixed = []
    for head in range(heads):
        part = slice(head * dim // heads, (head + 1) * dim // heads)
        scores = query[:, part] @ key[:, part].T / math.sqrt(dim // heads)
        if causal:
            scores = scores.masked_fill(torch.ones(count, count).triu(1).bool(), -math.inf)
        mixed.append(scores.softmax(-1) @ content[:, part])
    value = value + _linear(named, f"{name}.attention_out", torch.cat(mixed, -1))
    hidden = functional.gelu(
        _linear(named, f"{name}.mlp_in", _norm(named, f"{name}.norm_2", value)), approximate="tanh"
    )
    return value + _linear(named, f"{name}.mlp_out", hidden)


def _norm(named, name, value):
    return functional.layer_norm(value, value.shape[-1:], named[f"{name}.weight"], named[f"{name}.bias"])


def _linear(named, name, value):
    return value @ named[f"{name}.weight"].T + named[f"{name}.bias"]
