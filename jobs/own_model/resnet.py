"""An own model for hpcpipe: a small ResNet that reads letters, and its data, images of letters in many fonts.

The images are drawn from the fonts that come with matplotlib (DejaVu, STIX and Computer Modern; free licences), so
nothing has to be downloaded. Run it with `hpcpipe run jobs/own_model.toml`.
"""

from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

CLASSES = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


class Block(nn.Module):
    """Two convolutions added to their input (He et al., arXiv 1512.03385), with GroupNorm where ResNet has BatchNorm.

    BatchNorm would normalise over a micro-batch; GroupNorm (Wu and He, arXiv 1803.08494) looks at one image only.
    """

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm_1 = nn.GroupNorm(8, outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm_2 = nn.GroupNorm(8, outputs)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, value):
        hidden = functional.relu(self.norm_1(self.first(value)))
        return functional.relu(self.norm_2(self.second(hidden)) + self.shortcut(value))


def stem(width):
    return nn.Sequential(nn.Conv2d(1, width, 3, padding=1, bias=False), nn.GroupNorm(8, width), nn.ReLU())


def head(width):
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, len(CLASSES)))


def model(width=16, blocks=2):
    """Return the layers as functions that build one each, so that a rank builds only its own, and the loss."""
    layers = [partial(stem, width)]
    inputs = width
    for stage in range(3):
        for number in range(blocks):
            outputs, stride = width << stage, 2 if stage > 0 and number == 0 else 1
            layers.append(partial(Block, inputs, outputs, stride))
            inputs = outputs
    layers.append(partial(head, inputs))
    return layers, functional.cross_entropy


class Letters(torch.utils.data.Dataset):
    """Images (1, size, size) from 0 to 1 of letters and digits, each with the number of its character."""

    def __init__(self, size):
        from matplotlib import get_data_path
        from matplotlib.ft2font import FT2Font

        folder = Path(get_data_path()) / "fonts" / "ttf"
        fonts = [*sorted(folder.glob("DejaVuS*.ttf")), *sorted(folder.glob("STIXGeneral*.ttf"))]
        fonts = [path for path in fonts if "Display" not in path.name]
        fonts += [folder / f"{name}.ttf" for name in ("cmr10", "cmb10", "cmss10", "cmtt10", "cmti10")]
        images, labels = [], []
        for path in fonts:
            for points in (size * 0.6, size * 0.7, size * 0.8):
                font = FT2Font(str(path))
                font.set_size(points, 72)
                for label, character in enumerate(CLASSES):
                    font.set_text(character, 0.0)
                    font.draw_glyphs_to_bitmap(antialiased=True)
                    images.append(centred(np.asarray(font.get_image()), size))
                    labels.append(label)
        # In an order of their own, so that the last ones, which are held out, are of all fonts and characters.
        order = np.random.Generator(np.random.Philox(0)).permutation(len(images))
        self.images = torch.from_numpy(np.stack(images)[order]).unsqueeze(1).float() / 255
        self.labels = torch.tensor(labels)[torch.from_numpy(order)]

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]


def centred(glyph, size):
    """Return the glyph in the middle of a square; what does not fit is cut off."""
    height, width = (min(length, size) for length in glyph.shape)
    image = np.zeros((size, size), dtype=np.uint8)
    top, left = (size - height) // 2, (size - width) // 2
    image[top : top + height, left : left + width] = glyph[:height, :width]
    return image


def data(size=16):
    """Return the data set."""
    return Letters(size)
