"""The client's side of a round: local work, its own disk, its own policy, and the processes of a
client's machine.

Start with `side`, one client without a network; `receiving` reads what it is sent, `round_work` is
what it does. `node` is the process that answers the server, through `fleet`; `host` starts it, and
loads neither torch nor Flower.
It imports `wire`, `keys` and, of `hosts`, `folders`, `launch` and `process_group`; nothing of
`server`. `app`, `fleet` and `node` import Flower.
"""
