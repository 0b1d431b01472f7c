"""The user's own code and objects: read, handed over to commands, compared with what a
run was made of.
"""
