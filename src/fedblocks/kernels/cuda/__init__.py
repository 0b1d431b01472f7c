"""CUDA kernels, compiled when they are met by the NVRTC that torch ships."""
