"""What travels between server and clients, and the checks that it passes.

Only `records` needs Flower.
"""
