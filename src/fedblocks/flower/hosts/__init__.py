"""The machines of a federation: their folders, their processes, and what the commands do.

Start with `folders` (`server.toml` and `client.toml`), then `federation`, which carries out runs.
It imports every package beside it. `folders`, `launch` and `process_group` import no side of a
round, so that those may import them. Flower is imported inside functions only.
"""
