"""An own model for hpcpipe: an encoder like BERT that fills in masked bytes of a text.

Only masked places count for the loss, and how many those are differs from micro-batch to micro-batch: the loss is a
pair of functions, one that sums and one that counts. Run it with `hpcpipe run jobs/own_bert.toml`.
"""

import pydoc_data
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

MASK, SYMBOLS, IGNORED = 256, 257, -100


class Embedding(nn.Module):
    """Bytes and positions to vectors."""

    def __init__(self, dim, length):
        super().__init__()
        self.symbol, self.position = nn.Embedding(SYMBOLS, dim), nn.Embedding(length, dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, symbols):
        positions = torch.arange(symbols.shape[1], device=symbols.device)
        return self.norm(self.symbol(symbols) + self.position(positions))


class Block(nn.Module):
    """Self-attention in both directions and an MLP, each behind a norm and added to its input."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.into, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, value):
        batch, length, dim = value.shape
        parts = self.into(self.norm_1(value)).view(batch, length, 3, self.heads, dim // self.heads)
        query, key, content = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, content)
        value = value + self.out(seen.transpose(1, 2).reshape(batch, length, dim))
        return value + self.down(functional.gelu(self.up(self.norm_2(value))))


class Bert(nn.Module):
    """The whole model, as one would write it without hpcpipe; `pipeline_layers` says where it may be cut."""

    pipeline_layers = ("embedding", "blocks", "head")

    def __init__(self, dim, heads, layers, length):
        super().__init__()
        self.embedding = Embedding(dim, length)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.head = nn.Linear(dim, 256)

    def forward(self, symbols):
        value = self.embedding(symbols)
        for block in self.blocks:
            value = block(value)
        return self.head(value)


def summed(logits, targets):
    """Return the cross-entropy summed over the masked places."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")


def masked(targets):
    """Return how many places are masked."""
    return (targets != IGNORED).sum().item()


def model(dim=64, heads=4, layers=4, length=64):
    """Return the model and its loss."""
    return Bert(dim, heads, layers, length), (summed, masked)


class Masked:
    """Pieces of the help texts of the Python language, which every Python carries; of each, some bytes are masked.

    Which ones is a function of the sample's number alone, so a sample is the same whenever and wherever it is read.
    """

    def __init__(self, length, share):
        text = (Path(pydoc_data.__file__).parent / "topics.py").read_bytes()
        self.text = np.frombuffer(text, dtype=np.uint8)
        self.length, self.share = length, share

    def __len__(self):
        return len(self.text) // self.length

    def __getitem__(self, index):
        symbols = self.text[index * self.length :][: self.length].astype(np.int64)
        chosen = np.random.Generator(np.random.Philox(index)).random(self.length) < self.share
        targets = np.where(chosen, symbols, IGNORED)
        return torch.from_numpy(np.where(chosen, MASK, symbols)), torch.from_numpy(targets)


def data(length=64, share=0.15):
    """Return the data set."""
    return Masked(length, share)
