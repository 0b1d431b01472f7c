"""The command `fedblocks`. Nothing heavy is imported before a command needs it: the
help appears at once.
"""

from fedblocks.cli.app import main

__all__ = ["main"]
