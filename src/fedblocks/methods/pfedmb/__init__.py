"""pFedMB (Mori et al., 2022): `method` is its algorithm box; `compression` uploads less."""

from fedblocks.methods.pfedmb.method import PFedMB

__all__ = ["PFedMB"]
