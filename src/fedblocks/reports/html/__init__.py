"""A run or a comparison as one HTML file that needs no network, and as figures for papers."""

from fedblocks.reports.html.page import write_report
from fedblocks.reports.html.publication import write_figures

__all__ = ["write_figures", "write_report"]
