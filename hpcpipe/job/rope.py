"""How rotary position embeddings are stretched to longer contexts: the values of `[model] rope_scaling`.

Only names and limits of values; the frequencies are computed where the model is.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, PlainSerializer, PlainValidator, ValidationError

from hpcpipe.job.section import Section
from hpcpipe.job.values import Count, wrong
from hpcpipe.job.words import describe, listing, show

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
SCALINGS: dict[str, type[NoScaling] | type[LinearScaling] | type[Llama3Scaling]] = {
    "none": NoScaling,
    "linear": LinearScaling,
    "llama3": Llama3Scaling,
}


def _scaling(value: Any) -> AnyScaling:
    example = 'for example { type = "linear", factor = 2.0 }'
    if isinstance(value, NoScaling | LinearScaling | Llama3Scaling):
        return value
    if not isinstance(value, dict):
        raise wrong(f"must be a table with a type, got {describe(value)}", example)
    section = SCALINGS.get(str(value.get("type")))
    if section is None:
        known = listing([show(name) for name in SCALINGS], "or")
        raise wrong(f"= {show(value)} has no type that is known", f"type must be {known}; {example}")
    try:
        return section.model_validate(value)
    except ValidationError as error:
        said = "; ".join(f"{each['loc'][0]}: {each['msg']}" for each in error.errors(include_url=False))
        keys = listing([key for key in section.model_fields if key != "type"]) or "no other key"
        raise wrong(f"is wrong: {said}", f"the type {show(value['type'])} has {keys}") from None


RopeScaling = Annotated[
    AnyScaling,
    PlainValidator(_scaling),
    PlainSerializer(lambda section: section.model_dump(), return_type=dict[str, Any]),
]
