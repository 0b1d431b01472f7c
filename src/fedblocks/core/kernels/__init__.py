"""GPU kernels (Triton) that serve all clients of a stack in one launch. Imported only where there is a GPU."""
