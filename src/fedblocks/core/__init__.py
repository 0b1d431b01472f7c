"""The contract and the two functions that everything rests on: `local_round` and `reduce_slots`."""
