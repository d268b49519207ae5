"""What can be set on the command line, told by the configuration files themselves."""

import shutil
import textwrap
from collections.abc import Iterator
from importlib import resources
from typing import Any

from omegaconf import OmegaConf

_NAME = 34
"""Settings are told in a column of so many letters, and what they are beside it."""
_PLACES: dict[str, dict[str, str]] = {"run": {}, "train": {"policy": "training/policy"}}
"""Groups of a command whose folder has another name."""
_FURTHER = {"run": ("experiment",), "train": ()}
"""Groups that a command has beside those with a default."""


def settings_help(command: str) -> str:
    """The groups of ``simeval run`` or ``simeval train`` with the names they offer, and the settings with defaults."""
    chosen = _defaults(command)
    groups = [*chosen, *(name for name in _FURTHER[command] if name not in chosen)]
    told = ["choices (the default in brackets):"]
    for group in groups:
        default = f" [{chosen[group]}]" if chosen.get(group) else ""
        told += _entry(f"{group}={default}", ", ".join(_names(_PLACES[command].get(group, group))))
    told += ["", "settings, with their defaults:"]
    told += _settings(_text(f"{command}.yaml"))
    for group, name in chosen.items():
        if name:
            place = _PLACES[command].get(group, group)
            if own := _settings(_text(f"{place}/{name}.yaml"), f"{group}."):
                told += ["", f"settings of {group}={name}; others have their own, in configs/{place}/:", *own]
    return "\n".join(told)


def _text(path: str) -> str:
    return resources.files("configs").joinpath(*path.split("/")).read_text(encoding="utf-8")


def _names(place: str) -> list[str]:
    folder = resources.files("configs").joinpath(*place.split("/"))
    return sorted(item.name.removesuffix(".yaml") for item in folder.iterdir() if item.name.endswith(".yaml"))


def _defaults(command: str) -> dict[str, str | None]:
    """Group -> the name that is chosen where none is given."""
    config: Any = OmegaConf.to_container(OmegaConf.create(_text(f"{command}.yaml")))
    pairs = [pair for entry in config["defaults"] if isinstance(entry, dict) for pair in entry.items()]
    return {group.rpartition("@")[2]: name for group, name in pairs}


def _settings(text: str, prefix: str = "") -> list[str]:
    """A line for each setting of a file, with the comment above it."""
    lines = []
    for path, value, comment in _commented(text):
        if path not in _INNER and not path.endswith("_target_") and not value.startswith("${"):
            lines += _entry(f"{prefix}{path}={value}", comment)
    return lines


_INNER = ("name", "kind", "worlds", "policies")
"""Keys that nobody sets by themselves."""


def _commented(text: str) -> Iterator[tuple[str, str, str]]:
    """Each setting of a YAML mapping: its path, its value as written, and the comment above it or its section."""
    parents: list[tuple[int, str]] = []
    comment: list[str] = []
    for line in text.splitlines():
        bare, depth = line.strip(), len(line) - len(line.lstrip())
        key, colon, value = bare.partition(":")
        if bare.startswith("#"):
            comment.append(bare.lstrip("# "))
            continue
        if colon and " " not in key and not bare.startswith("-"):
            parents = [parent for parent in parents if parent[0] < depth]
            if value:
                yield ".".join([*(name for _, name in parents), key]), value.strip(), " ".join(comment)
            parents.append((depth, key))
        if not colon or value:
            comment = []


def _entry(name: str, what: str) -> list[str]:
    """``name``, and beside it, or below where it is long, what it is."""
    room = max(40, shutil.get_terminal_size().columns - _NAME - 4)
    lines = textwrap.wrap(what, room, break_on_hyphens=False) or [""]
    if len(name) < _NAME - 1:
        first, rest = f"  {name:<{_NAME}}{lines[0]}", lines[1:]
    else:
        first, rest = f"  {name}", lines
    return [first.rstrip(), *(f"{'':<{_NAME + 2}}{line}" for line in rest if line)]
