"""Clients in forked workers; tensors travel through shared memory, everything else as JSON."""

from fedblocks.engines.processes.engine import Processes

__all__ = ["Processes"]
