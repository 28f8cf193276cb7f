"""The models of `[variability]`: what can vary the times of tasks and messages, and with which parameters.

Only names and limits of values; what a model does is written once, in the code that draws.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import Field, PlainSerializer, PlainValidator, ValidationError

from hpcpipe.job.section import Section
from hpcpipe.job.values import LARGEST, wrong
from hpcpipe.job.words import describe, listing, nearest, show

Positive = Annotated[float, Field(gt=0)]
Sigma = Annotated[float, Field(ge=0, le=10)]
Probability = Annotated[float, Field(ge=0, le=1)]


class NoCompute(Section):
    """Every task takes its usual time."""

    model: Literal["none"]


class Lognormal(Section):
    """Each task by itself, with mean 1."""

    model: Literal["lognormal"]
    sigma: Sigma = 0.3


class HeavyTail(Section):
    """A share of the tasks takes `factor` times as long, with mean 1."""

    model: Literal["heavy-tail"]
    probability: Probability = 0.05
    factor: Annotated[float, Field(ge=1)] = 10.0


class Straggler(Section):
    """One stage is slower."""

    model: Literal["straggler"]
    stage: Annotated[int, Field(ge=0, le=LARGEST)] = 0
    factor: Positive = 1.5


class Jitter(Section):
    """With a probability a delay is added (RRFP, arXiv 2605.18750, table 6)."""

    model: Literal["jitter"]
    probability: Probability = 0.2
    base_ms: Positive = 10.0
    alpha: Positive = 1.0


class Microbatch(Section):
    """The cost follows the micro-batch, the same on all stages."""

    model: Literal["microbatch"]
    sigma: Sigma = 0.8


class Encoder(Section):
    """The cost follows the micro-batch on the first stages only."""

    model: Literal["encoder"]
    stages: Annotated[int, Field(ge=1, le=LARGEST)] = 1
    sigma: Sigma = 0.8


class NoNetwork(Section):
    """Messages take what they take."""

    model: Literal["none"]


class ConstantDelay(Section):
    """Every message takes so long."""

    model: Literal["constant"]
    base_ms: Positive = 0.1


class LognormalDelay(Section):
    """Every message takes base exp(sigma z); unless they may overtake, they arrive in the order of sending."""

    model: Literal["lognormal"]
    base_ms: Positive = 0.1
    sigma: Sigma = 2.0
    overtaking: bool = True


class Bursts(Section):
    """Somebody else's traffic: for `length_ms` of every `every_ms` a message takes `factor` times as long."""

    model: Literal["bursts"]
    base_ms: Positive = 0.1
    every_ms: Positive = 100.0
    length_ms: Positive = 30.0
    factor: Annotated[float, Field(ge=1)] = 20.0


AnyCompute = NoCompute | Lognormal | HeavyTail | Straggler | Jitter | Microbatch | Encoder
AnyNetwork = NoNetwork | ConstantDelay | LognormalDelay | Bursts
COMPUTE: dict[str, type[Section]] = {
    "none": NoCompute,
    "lognormal": Lognormal,
    "heavy-tail": HeavyTail,
    "straggler": Straggler,
    "jitter": Jitter,
    "microbatch": Microbatch,
    "encoder": Encoder,
}
NETWORK: dict[str, type[Section]] = {
    "none": NoNetwork,
    "constant": ConstantDelay,
    "lognormal": LognormalDelay,
    "bursts": Bursts,
}


def _one_of(models: dict[str, type[Section]], example: str) -> Callable[[Any], Any]:
    """Return a validator that takes a table and finds its section by its key `model`."""
    known = listing([show(name) for name in models], "or")

    def validate(value: Any) -> Any:
        if isinstance(value, tuple(models.values())):
            return value
        if not isinstance(value, dict):
            raise wrong(f"must be a table with a model, got {describe(value)}", f"for example {example}")
        name = value.get("model")
        if not isinstance(name, str) or name not in models:
            near = nearest(name, models) if isinstance(name, str) else None
            meant = f"did you mean {show(near)}? " if near else ""
            got = f"has the unknown model {show(name)}" if name is not None else "needs a model"
            raise wrong(got, f"{meant}known are {known}; for example {example}")
        section = models[name]
        try:
            return section.model_validate(value)
        except ValidationError as error:
            said = [_say(detail["loc"], detail["type"], detail["msg"]) for detail in error.errors(include_url=False)]
            keys = [key for key in section.model_fields if key != "model"]
            has = f"{show(name)} has {listing(keys)}" if keys else f"{show(name)} has no other key"
            raise wrong(f"is wrong: {'; '.join(said)}", has) from None

    return validate


def _say(where: tuple[int | str, ...], kind: str, message: str) -> str:
    key = str(where[0])
    if kind == "extra_forbidden":
        return f"unknown key {key}"
    return f"{key} {message.replace('Input should', 'must')}"


_AS_TABLE = PlainSerializer(lambda section: section.model_dump(), return_type=dict[str, Any])
Compute = Annotated[AnyCompute, PlainValidator(_one_of(COMPUTE, '{ model = "lognormal", sigma = 0.3 }')), _AS_TABLE]
Network = Annotated[AnyNetwork, PlainValidator(_one_of(NETWORK, '{ model = "constant", base_ms = 0.1 }')), _AS_TABLE]
