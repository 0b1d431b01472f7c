"""A real federation on Flower: a server and clients on machines of their own, with the results of a
simulation.

Start with `local`, a whole federation in one process, and then read along a round: `server.rounds`,
`client.side`.

- `wire`: what travels, and the checks that it passes. It imports nothing else of this package.
- `server`, `client`: the two sides of a round. Both import `wire`, neither imports the other.
- `keys`: certificates and keys.
- `gateway`: the server's door to other machines.
- `hosts`: folders, processes and commands of the machines; it imports all of the above.
- `local`, `simulation`, `ray_app`, `deploy`: whole federations, and what Flower starts.

`hosts.folders` needs neither side of a round. Every package but `wire` may import it, and the
modules that it is made of: `client.policy`, `gateway.limits` and `keys.private_files`. `client` may
also import `hosts.launch` and `hosts.process_group`.

Flower itself (the extra `flower`) is imported by `wire.records`, both `app` modules,
`server.pulling`, `client.fleet`, `client.node`, `ray_app` and `deploy`; elsewhere only inside
functions. Of the rest of the library, only `cli` imports this package.
"""
