"""pFedMB (Mori et al., 2022): `method` is its algorithm box."""

from fedblocks.methods.pfedmb.method import PFedMB

__all__ = ["PFedMB"]
