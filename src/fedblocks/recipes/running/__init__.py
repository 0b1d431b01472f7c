"""Carry out recipes: what is due, worker processes, halving, results."""
