"""The report: everything known of a map as one plain record, and as one page for scientists."""

from condokit.report.record import build
from condokit.report.render import render

__all__ = ["build", "render"]
