"""What travels between server and clients: headers and arrays, the run specification, and the
checks of both.

Start with `messages`, then `admission`, which decides what the server takes from a client.
It imports nothing else of `fedblocks.flower`; only `records` imports Flower.
"""
