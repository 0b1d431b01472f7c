"""What replaces torch's layers in a stack of clients.

May import kernels and the core's errors, mode and randomness; start with `replacement`.
"""
