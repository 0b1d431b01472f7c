"""FedMN (Wang et al., 2022): `method` with a router that tells clients apart, or as printed
(`AS_PRINTED`); `reference` as its published code does it.
"""

from fedblocks.methods.fedmn.method import FedMN
from fedblocks.methods.fedmn.pool import AS_PRINTED
from fedblocks.methods.fedmn.reference import FedMNReference

__all__ = ["AS_PRINTED", "FedMN", "FedMNReference"]
