"""Where tasks run: when one is done, where buffers live, how much memory was used."""

from hpcpipe.device.cpu import Cpu

__all__ = ["Cpu"]
