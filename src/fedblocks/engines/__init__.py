"""Ways to map `local_round` over clients."""
