"""Flow (Panchal and Guan): the poster, version 2, and dynamic routing."""

from fedblocks.methods.flow.dynamic_routing import DynamicRouting
from fedblocks.methods.flow.flow import Flow
from fedblocks.methods.flow.flow_v2 import FlowV2
from fedblocks.methods.flow.options import POSTER

__all__ = ["POSTER", "DynamicRouting", "Flow", "FlowV2"]
