"""FedMN (Wang et al., 2022): `method` as printed, `reference` as its published code does it."""

from fedblocks.methods.fedmn.method import FedMN
from fedblocks.methods.fedmn.reference import FedMNReference

__all__ = ["FedMN", "FedMNReference"]
