"""The configuration of a run: read, completed, checked, explained.

May import methods, nets, data and engines; start with `model`.
"""
