"""One run on several processes, GPUs or machines, as torchrun starts them: each rank has its part
of the clients.
"""
