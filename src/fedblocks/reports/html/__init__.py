"""A run or a comparison as one HTML file that needs no network."""

from fedblocks.reports.html.page import write_report

__all__ = ["write_report"]
