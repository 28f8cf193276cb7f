"""Split a backward into B (input gradients, which another stage waits for) and W (weight gradients, which can wait).

`deferrable` prepares a stage's layers once; B and W of a micro-batch are then

    with recording() as pending:  # B
        gradients = torch.autograd.grad(output, [entry, *parameters], gradient, allow_unused=True)
    ...  # W, at any later time; other micro-batches' B may come before it
    weights = pending.compute(parameters, gradients[1:])

- All trained parameters are asked for in B. Layers that can wait return None for theirs; the others return a gradient
  at once (W folded into B), and `compute` adds both shares. So a first stage, whose `entry` is no float, works alike.
- `weights` has the bits of the unsplit backward's gradients, in the order of `parameters`, None where unused.
- `pending.num_bytes` says what is kept until `compute`. Among it may be `entry`'s and `gradient`'s memory: receive
  buffers that they lie in stay untouched until then.
- Outside a recording the layers behave as torch's own, `.backward()` and second derivatives included.

The modules know nothing of stages, micro-batches or messages.
"""

from torch import nn

from hpcpipe.models.recording import Pending, recording

__all__ = ["Pending", "deferrable", "recording"]


def deferrable(module: nn.Module) -> tuple[nn.Module, list[str]]:
    """Let the known layers in `module` put their weight gradients off; return it and notices about the others.

    Modules keep their identity, parameters, hooks and state-dict names.
    """
    return module, []
