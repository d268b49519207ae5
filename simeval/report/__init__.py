"""``report.html``: one self-contained interactive page about a run."""

from simeval.report.page import report

__all__ = ["report"]
