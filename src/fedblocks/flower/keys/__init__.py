"""Certificates and keys: make, enrol, revoke, rotate and renew them; and private files.

Start with `certificates` (the server's; `certificate_checks` reads them) or `key_table` (the
clients' keys on the server).
It imports `hosts.folders` and nothing else of `fedblocks.flower`; it does not need Flower.
"""
