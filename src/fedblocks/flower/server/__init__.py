"""The server's side of a round, and what surrounds it: the registry of connected clients, jobs, the
run folder.

Start with `rounds`, one round without a network, and `sending`, what clients get in it; `app` plays
rounds over Flower; `service` carries out a job. It imports `wire`, `keys` and `hosts.folders`, and
nothing of `client`; only `app` and `pulling` import Flower.
"""
