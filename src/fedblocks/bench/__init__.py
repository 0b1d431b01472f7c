"""How fast it is, beside a plain PyTorch loop that does the same work in the same process."""
