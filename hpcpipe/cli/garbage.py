"""How often Python looks for cycles of objects that nothing else refers to: seldom while libraries are loaded.

torch alone makes so many objects that stay that looking through them again and again is a quarter of the CPU time in
which a rank starts, and a half of that in which it ends. It must not import anything of hpcpipe.
"""

import atexit
import gc

_SELDOM = (100_000, 50, 100)
_USUAL = gc.get_threshold()


def collect_seldom() -> None:
    """Let cycles wait for each other until more have been made than a library makes, and lie when Python ends."""
    gc.set_threshold(*_SELDOM)
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)


def collect_as_usual() -> None:
    """Free cycles as soon as Python would, but for what was made so far, which is looked through no more.

    A model's cycle may hold the memory of a step, and steps must not wait for a look through all of torch.
    """
    gc.freeze()
    gc.set_threshold(*_USUAL)
