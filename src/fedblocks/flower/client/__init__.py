"""The client's side: local work, its own disk, its own policy, and the process that speaks to the server.

Start with `side`.
"""
