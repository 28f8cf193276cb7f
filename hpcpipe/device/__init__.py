"""Where tasks run: when one is done, where buffers live, how much memory was used.

`cpu` needs torch and is imported where it is meant; the rest needs no array library.
"""

from hpcpipe.device.emulated import Emulated
from hpcpipe.device.running import Finished, Running

__all__ = ["Emulated", "Finished", "Running"]
