"""A run as it goes, in a browser or on a terminal; nothing is ever written to it."""
