"""Recorded runs in the formats of other tools."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from simeval.errors import ConfigError, UnsupportedError, unknown
from simeval.export.lerobot import LeRobotSettings, export_lerobot
from simeval.export.minari import export_minari
from simeval.reader import Run
from simeval.types import WorldSpec

__all__ = ["LeRobotSettings", "export", "export_lerobot", "export_minari"]

_LATER = ("robomimic",)
_Export = Callable[[Run, str | None, Mapping[str, WorldSpec], Mapping[str, Any]], list[Path]]


def export(
    run: Run,
    to: str,
    output: str | None = None,
    specs: Mapping[str, WorldSpec] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Write the finished episodes of ``run`` in format ``to``; returns the folders written.

    ``output`` names the dataset, derived from the run's name by default. ``specs`` gives spaces and control step of the
    run's Worlds by name; without it, spaces are as wide as the arrays' types allow. ``settings``: the format's own
    (``LeRobotSettings``). Nothing that exists is overwritten.
    """
    if to in _LATER:
        raise UnsupportedError(f"export to {to!r} is not there yet; available: {', '.join(_FORMATS)}")
    if to not in _FORMATS:
        raise unknown("export format", to, [*_FORMATS, *_LATER])
    return _FORMATS[to](run, output, specs or {}, settings or {})


def _to_minari(run: Run, output: str | None, specs: Mapping[str, WorldSpec], settings: Mapping[str, Any]) -> list[Path]:
    if settings:
        raise ConfigError(f"export to minari has no settings; received {', '.join(settings)}")
    return export_minari(run, output, specs)


def _to_lerobot(
    run: Run, output: str | None, specs: Mapping[str, WorldSpec], settings: Mapping[str, Any]
) -> list[Path]:
    known = [item.name for item in fields(LeRobotSettings)]
    for name in settings:
        if name not in known:
            raise unknown("setting of export to lerobot", name, known)
    return export_lerobot(run, output, specs, LeRobotSettings(**settings))


_FORMATS: Mapping[str, _Export] = {"minari": _to_minari, "lerobot": _to_lerobot}
