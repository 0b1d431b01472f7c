"""The tables and figures of each paper as recipes."""
