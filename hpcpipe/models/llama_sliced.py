"""How the layers of a Llama are cut into tensor-parallel slices: heads, hidden columns and tokens are dealt out evenly.

Query heads stay with the key and value heads that they share. Norms are whole on every slice; nothing here knows how
slices sum.
"""

from torch import nn

from hpcpipe.models.tensor_parallel import Slices, by_columns, by_rows


def slice_block(layer: nn.Module, slices: Slices) -> None:
    """Keep this rank's heads and its columns of the MLP."""
    for linear in (layer.query, layer.key, layer.value, layer.mlp_gate, layer.mlp_in):
        assert isinstance(linear, nn.Linear)
        by_columns(linear, slices, entered=True)
    by_rows(layer.attention_out, slices)  # type: ignore[arg-type]
    by_rows(layer.mlp_out, slices)  # type: ignore[arg-type]
    layer.slices = slices  # type: ignore[assignment]
