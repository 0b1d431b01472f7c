"""The machines of a federation: their folders, their processes, their commands."""
