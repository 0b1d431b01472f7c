"""Whether a user's module trains here as it does in plain PyTorch: run, not guessed.
Start with `check`.
"""
