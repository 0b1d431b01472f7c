"""The server's door: which requests from other machines reach Flower, and what other users of the
machine may reach.

Start with `gateway`; `requests` and `answers` are the little HTTP that it speaks, `members` checks
keys, `connections` and `limits` bound what a sender may use.
It imports `hosts.folders` and `keys`, and nothing else of `fedblocks.flower`. Only `superlink`
needs Flower.
"""
