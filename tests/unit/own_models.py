"""Models and data of a user's own, good and bad, that tests name with kind = "own_models:..."."""

from functools import partial

import torch
from torch import nn
from torch.nn import functional

WIDTH = 12
CLASSES = 5


class Residual(nn.Module):
    def __init__(self, width=WIDTH):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, value):
        return value + self.down(torch.tanh(self.up(self.norm(value))))


class Net(nn.Module):
    """A model that exists whole, with its head tied to its first layer and one parameter that torch cannot put off."""

    pipeline_layers = ("enter", "blocks", "leave")

    def __init__(self, depth=6):
        super().__init__()
        self.enter = nn.Linear(WIDTH, WIDTH, bias=False)
        self.blocks = nn.ModuleList([*(Residual() for _ in range(depth - 1)), nn.GroupNorm(3, WIDTH)])
        self.leave = nn.Linear(WIDTH, WIDTH, bias=False)
        self.leave.weight = self.enter.weight

    def loss(self, output, targets):
        return functional.cross_entropy(output[:, :CLASSES], targets)


class Numbers:
    """Vectors with a class that can be learned; all drawn from the sample's number."""

    def __init__(self, samples=40):
        self.samples = samples

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        draws = torch.Generator().manual_seed(index)
        value = torch.randn(WIDTH, generator=draws)
        return value, int(value[:CLASSES].argmax())


class Padded(Numbers):
    """Rows of vectors, of which a share that differs from sample to sample is not to be learned."""

    def __getitem__(self, index):
        draws = torch.Generator().manual_seed(index)
        values = torch.randn(4, WIDTH, generator=draws)
        targets = values[:, :CLASSES].argmax(dim=1)
        targets[1 + index % 4 :] = -100
        return values, targets


def whole(**options):
    return Net(**options)


def lazily(depth=6, dropout=0.0):
    layers = [partial(nn.Linear, WIDTH, WIDTH), *[Residual] * depth, partial(nn.Dropout, dropout)]
    return [*layers, partial(nn.Linear, WIDTH, CLASSES)], functional.cross_entropy


def summed(output, targets):
    return functional.cross_entropy(output.flatten(0, 1), targets.flatten(), reduction="sum")


def counted(targets):
    return (targets != -100).sum().item()


def padded(depth=4):
    return lazily(depth)[0], (summed, counted)


class Pair(nn.Module):
    """Hands a dict on, with a number and an integer tensor in it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, value):
        if isinstance(value, dict):
            return {"value": self.linear(value["value"]), "times": value["times"] + 1, "ids": value["ids"]}
        return {"value": self.linear(value), "times": 1, "ids": torch.arange(value.shape[0])}


class Out(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, CLASSES)

    def forward(self, value):
        return self.linear(value["value"]) + value["ids"][:, None] * 0.1 * value["times"]


def dicts():
    return [Pair, Pair, Pair, Pair, Out], functional.cross_entropy


def plain_list():
    torch.manual_seed(1)  # what a user's function does with the seed changes nothing between layouts
    return [nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, CLASSES)], nn.CrossEntropyLoss(
        weight=torch.ones(CLASSES)
    )


def data(samples=40):
    return Numbers(samples)


class Sentences(Numbers):
    """Ids of tokens and the next ones, of which some count for nothing."""

    def __getitem__(self, index):
        tokens = torch.randint(16, (9,), generator=torch.Generator().manual_seed(index))
        targets = tokens[1:].clone()
        targets[: index % 3] = -100
        return tokens[:-1], targets


def sentences(samples=40):
    return Sentences(samples)


def rows(samples=40):
    return Padded(samples)


# --- what users get wrong ---


def _layers():
    return [nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, CLASSES)]


def no_loss():
    return nn.Sequential(*_layers())


def nothing():
    return None


def three():
    return _layers(), functional.cross_entropy, "more"


def no_function_as_loss():
    return _layers(), "cross_entropy"


def class_as_loss():
    return _layers(), nn.CrossEntropyLoss


def not_a_layer():
    return [nn.Linear(WIDTH, WIDTH), 3], functional.cross_entropy


def mixed():
    return [nn.Linear(WIDTH, WIDTH), Residual], functional.cross_entropy


def empty():
    return [], functional.cross_entropy


def builds_no_module():
    return [partial(nn.Linear, WIDTH, WIDTH), lambda: torch.zeros(3)], functional.cross_entropy


def without_a_cut():
    class Uncut(Net):
        pipeline_layers = None

    return Uncut()


def wrong_name():
    class Misspelt(Net):
        pipeline_layers = ("enter", "block", "leave")

    return Misspelt()


def lost_parameters():
    class Lossy(Net):
        pipeline_layers = ("enter", "leave")

    return Lossy()


class Text(nn.Module):
    def forward(self, value):
        return [value, "a text and", object()]


def no_tensor():
    return [nn.Linear(WIDTH, WIDTH), Text(), nn.Identity()], functional.cross_entropy


def in_place():
    return [nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True), nn.Linear(WIDTH, CLASSES)], functional.cross_entropy


def batch_norm():
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)), nn.Linear(WIDTH, CLASSES)]
    return layers, functional.cross_entropy


def frozen_batch_norm():
    layers, loss = batch_norm()
    layers[0][1].eval()
    return layers, loss


def lazy():
    return [nn.LazyLinear(WIDTH), nn.Linear(WIDTH, CLASSES)], functional.cross_entropy


def wrong_shape():
    return [nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH + 1, CLASSES)], functional.cross_entropy


def long_loss():
    return _layers(), partial(functional.cross_entropy, reduction="none")


def number_as_loss():
    return _layers(), lambda *_: 3.0


def raises():
    return {}["missing"]


def two_layers():
    return [partial(nn.Linear, WIDTH, WIDTH), partial(nn.Linear, WIDTH, CLASSES)], functional.cross_entropy


class RealOnly(nn.Module):
    """Cannot be called on meta: it looks at values."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, CLASSES)

    def forward(self, value):
        return self.linear(value) * (2.0 if value.sum().item() > 0 else 1.0)


def real_only():
    return [partial(nn.Linear, WIDTH, WIDTH), RealOnly], functional.cross_entropy


class Transposed(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, value):
        return value * self.scale


def cannot_wait():
    return [partial(nn.Linear, WIDTH, WIDTH), Transposed, partial(nn.Linear, WIDTH, CLASSES)], functional.cross_entropy
