"""Records of pictures and texts for tests: random pixels, written as JSON lines or as a webdataset tar."""

import io
import json
import tarfile

import numpy as np
from PIL import Image


def pixels(width, height, *, seed, channels=3):
    """Return random pixels (height, width, channels) uint8."""
    draws = np.random.default_rng(seed)
    return draws.integers(0, 256, (height, width, channels), dtype=np.uint8)


def png(array):
    """Return the bytes of a picture without loss."""
    file = io.BytesIO()
    Image.fromarray(array.squeeze(-1) if array.shape[-1] == 1 else array).save(file, "PNG")
    return file.getvalue()


JOB = """\
[model]
kind = "vlm"
patch = 4
merge = 2
encoder_layers = 3
encoder_dim = 32
encoder_heads = 2
layers = 4
dim = 32
heads = 4
context = 160
[data]
kind = "image-text"
path = "records.jsonl"
"""
"""A job that learns from them; the table [data] is open at its end."""

RECORDS = [  # of pictures (width, height), and the text
    ([], "nothing to see"),
    ([(8, 8)], "a"),
    ([(16, 8), (8, 24)], "<image>wide, <image>high"),
    ([(24, 16)] * 3 + [(8, 8), (32, 8), (16, 16)], "many"),
    ([(16, 16)], ""),
    ([(8, 16)], "größer"),
    ([(32, 24)], "one large picture"),
    ([], "text only, and longer than the others are by some words"),
]


def write_lines(folder, records=RECORDS, *, channels=3):
    """Write the records as JSON lines with PNG files beside them; return the path."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for number, (sizes, text) in enumerate(records):
        names = []
        for which, (width, height) in enumerate(sizes):
            names.append(f"{number}-{which}.png")
            array = pixels(width, height, seed=[number, which], channels=channels)
            (folder / names[-1]).write_bytes(png(array))
        line = {"text": text}
        if names:
            line["image"] = names[0] if len(names) == 1 else names
        lines.append(json.dumps(line))
    path = folder / "records.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def write_tar(path, records=RECORDS, *, channels=3):
    """Write the same records as a tar."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for number, (sizes, text) in enumerate(records):
            for which, (width, height) in enumerate(sizes):
                content = png(pixels(width, height, seed=[number, which], channels=channels))
                add(tar, f"set/{number:04d}.{which}.png", content)
            if number % 2:
                add(tar, f"set/{number:04d}.txt", text.encode())
            else:
                add(tar, f"set/{number:04d}.json", json.dumps({"text": text}).encode())
    return path


def add(tar, name, content):
    """Add a file to a tar."""
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))
