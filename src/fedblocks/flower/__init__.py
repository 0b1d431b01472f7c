"""A real federation: what travels between a server and its clients, and both sides of a round.

Nothing here but `apps` needs Flower itself (the extra `flower`), and nothing else of the library imports this package.
"""
