"""The models of `[variability]`: what can vary the times of tasks and messages, and with which parameters.

Only names and limits of values; what a model does is written once, in the code that draws.
"""

from typing import Annotated, Literal

from pydantic import Field

from hpcpipe.job.section import Section
from hpcpipe.job.values import LARGEST
from hpcpipe.job.variants import AS_TABLE, one_of

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

Compute = Annotated[AnyCompute, one_of(COMPUTE, "model", '{ model = "lognormal", sigma = 0.3 }'), AS_TABLE]
Network = Annotated[AnyNetwork, one_of(NETWORK, "model", '{ model = "constant", base_ms = 0.1 }'), AS_TABLE]
