"""In what two runs differ: configuration, versions, Worlds, policies and hardware, in plain words."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from simeval.folder import flat

_NO_MATTER = ("run_id", "config.run", "config.report", "config.hydra", "began", "ended", "size")
_OF_A_WORLD_OR_POLICY = ("num_slots", "threads", "device")
"""Settings that change how fast a result comes, and not the result; so are all of a World's ``host``."""


def differences(info_a: Mapping[str, Any], info_b: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What differs between two manifests, names and slots aside: ``what``, its values ``a`` and ``b``, and ``text``."""
    was, now = (flat({**info, **_last_session(info), "sessions": None}) for info in (info_a, info_b))
    found = {key: (was.get(key), now.get(key)) for key in sorted({*was, *now}) if was.get(key) != now.get(key)}
    found = {key: values for key, values in found.items() if _matters(key)}
    told = {(key.rpartition(".")[2], *map(str, values)) for key, values in found.items() if key.startswith("config.")}
    parts = [
        (key, name, a, b)
        for key, values in found.items()
        for name, a, b in (_apart(*values) if key.startswith("policies.") else [("", *values)])
        if (name.rpartition(".")[2], str(a), str(b)) not in told or not name
    ]
    return [{"what": key, "a": a, "b": b, "text": _in_words(key, a, b, name)} for key, name, a, b in parts]


def _apart(a: Any, b: Any) -> Iterator[tuple[str, Any, Any]]:
    """Where two identities of a policy differ: in words (name ""), and in which settings."""
    (words_a, settings_a), (words_b, settings_b) = _parsed(a), _parsed(b)
    if words_a != words_b or settings_a is None or settings_b is None:
        yield "", words_a, words_b
    if settings_a is not None and settings_b is not None:
        was, now = flat(settings_a), flat(settings_b)
        yield from ((key, was.get(key), now.get(key)) for key in sorted({*was, *now}) if was.get(key) != now.get(key))


def _parsed(identity: Any) -> tuple[Any, dict[str, Any] | None]:
    """The words of a policy's identity, and the settings that it ends with, where it does."""
    words, brace, settings = str(identity).partition(" {")
    try:
        return (words, json.loads("{" + settings)) if brace else (identity, None)
    except ValueError:
        return identity, None


def _last_session(info: Mapping[str, Any]) -> Mapping[str, Any]:
    sessions = info.get("sessions") or [{}]
    return sessions[-1]


def _matters(key: str) -> bool:
    if any(key == name or key.startswith(f"{name}.") for name in _NO_MATTER):
        return False
    *groups, last = key.split(".")
    return not (groups[:1] == ["config"] and (last in _OF_A_WORLD_OR_POLICY or "host" in (*groups[1:], last)))


def _in_words(key: str, a: Any, b: Any, setting: str = "") -> str:
    kind, _, name = key.partition(".")
    if kind == "config":
        return f"setting {name}: {_value(a, 'not set')} in A, {_value(b, 'not set')} in B"
    if kind == "versions":
        return f"version of {name}: {_value(a, 'not installed')} in A, {_value(b, 'not installed')} in B"
    if kind == "worlds":
        return f"world {name}: {_value(a, 'absent')} in A, {_value(b, 'absent')} in B"
    if kind == "policies":
        world, _, policy = name.partition(".")
        named = f"policy {policy} in world {world}{f', {setting}' if setting else ''}"
        return f"{named}: {_value(a, 'absent')} in A, {_value(b, 'absent')} in B"
    if kind == "git":
        return f"code of the working directory: commit {_value(a, 'unknown')} in A, {_value(b, 'unknown')} in B"
    what = f"hardware, {name}" if kind == "hardware" else key.replace("_", " ")
    return f"{what}: {_value(a, 'not recorded')} in A, {_value(b, 'not recorded')} in B"


def _value(value: Any, absent: str) -> str:
    return absent if value is None else str(value)
