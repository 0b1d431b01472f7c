"""Personal models outside a run: a client's model as evaluation uses it, folded,
written to a file, used again.
"""
