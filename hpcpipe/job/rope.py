"""How rotary position embeddings are stretched to longer contexts: the values of `[model] rope_scaling`.

Only names and limits of values; the frequencies are computed where the model is.
"""

from typing import Annotated, Literal

from pydantic import Field

from hpcpipe.job.section import Section
from hpcpipe.job.values import Count
from hpcpipe.job.variants import AS_TABLE, one_of

Factor = Annotated[float, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]


class NoScaling(Section):
    """Frequencies as they are (Su et al., arXiv 2104.09864)."""

    type: Literal["none"] = "none"


class LinearScaling(Section):
    """Positions divided by `factor` (Chen et al., arXiv 2306.15595)."""

    type: Literal["linear"]
    factor: Factor


class Llama3Scaling(Section):
    """Llama 3.1's: long waves divided by `factor`, short ones kept, those between interpolated."""

    type: Literal["llama3"]
    factor: Factor
    low_freq_factor: Positive
    high_freq_factor: Positive
    original_max_position_embeddings: Count


AnyScaling = NoScaling | LinearScaling | Llama3Scaling
SCALINGS: dict[str, type[Section]] = {"none": NoScaling, "linear": LinearScaling, "llama3": Llama3Scaling}
RopeScaling = Annotated[AnyScaling, one_of(SCALINGS, "type", '{ type = "linear", factor = 2.0 }'), AS_TABLE]
