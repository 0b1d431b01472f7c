"""Steps on a CPU, written down once and repeated without Python and autograd: the same bits."""
