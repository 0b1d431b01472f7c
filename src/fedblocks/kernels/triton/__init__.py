"""Triton kernels, which come with torch's GPU builds only."""
