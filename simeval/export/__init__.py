"""Recorded runs in the formats of other tools."""

from collections.abc import Callable, Mapping
from pathlib import Path

from simeval.errors import UnsupportedError, unknown
from simeval.export.minari import export_minari
from simeval.reader import Run
from simeval.types import WorldSpec

__all__ = ["export", "export_minari"]

_FORMATS: Mapping[str, Callable[[Run, str | None, Mapping[str, WorldSpec]], list[Path]]] = {"minari": export_minari}
_LATER = ("lerobot", "robomimic")


def export(run: Run, to: str, output: str | None = None, specs: Mapping[str, WorldSpec] | None = None) -> list[Path]:
    """Write the finished episodes of ``run`` in format ``to``; returns the folders written.

    ``output`` names the dataset, derived from the run's name by default. ``specs`` gives the spaces of the run's Worlds
    by name; without it, spaces are as wide as the arrays' types allow. Nothing that exists is overwritten.
    """
    if to in _LATER:
        raise UnsupportedError(f"export to {to!r} is not there yet; available: {', '.join(_FORMATS)}")
    if to not in _FORMATS:
        raise unknown("export format", to, [*_FORMATS, *_LATER])
    return _FORMATS[to](run, output, specs or {})
