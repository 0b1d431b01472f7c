"""GPU kernels that serve all clients of a stack in one launch: `cuda` (NVRTC) and `triton`.

Import torch alone; imported only where there is a GPU.
"""
