"""Certificates and keys: made, enrolled, revoked, rotated, renewed; and private files."""
