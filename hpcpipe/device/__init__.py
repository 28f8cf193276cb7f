"""Where tasks run: when one is done, where buffers live, how much memory was used.

`cpu` and `cuda` need torch and are imported where they are meant; the rest needs no array library.
"""

from hpcpipe.device.emulated import Emulated
from hpcpipe.device.running import Finished, Running

__all__ = ["Emulated", "Finished", "Running"]
