"""The server's door: what passes from outside, and what other users of the machine may reach."""
