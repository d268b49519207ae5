"""Making a run folder, and going on with one: ``run.json`` says what the run is, and is never overwritten unasked."""

import contextlib
import json
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from simeval.errors import ConfigError, TraceError
from simeval.noise import NOISE_LAYOUT
from simeval.provenance import git_commit, hardware, versions
from simeval.reader import Run
from simeval.shard import SCHEMA
from simeval.trace import lock_folder


@dataclass(frozen=True)
class Manifest:
    """What ``run.json`` records beside the environment: configuration, fingerprints by World and policy, the
    conventions that both declare (``simeval.matching.declarations``), and how many rollouts the study asks for
    (``Study.size``; none where that shows only as it runs)."""

    config: Mapping[str, Any]
    worlds: Mapping[str, str]
    policies: Mapping[str, Mapping[str, str]]
    conventions: Mapping[str, Any] = field(default_factory=dict)
    size: int | None = None

    def __post_init__(self) -> None:
        whose = {f"world {name!r}": text for name, text in self.worlds.items()}
        for world, policies in self.policies.items():
            whose |= {f"policy {name!r} in world {world!r}": text for name, text in policies.items()}
        for what, text in whose.items():
            if not isinstance(text, str):
                raise ConfigError(f"the fingerprint of {what} is {text!r}, expected one line of text")

    def session(self) -> dict[str, Any]:
        """One stretch of writing: when, with which versions, on what; ``ended`` once the study was gone through."""
        return {
            "began": _now(),
            "versions": versions(),
            "hardware": hardware(),
            "git": git_commit(Path.cwd()),
            "config": dict(self.config),
            "size": self.size,
            "ended": None,
        }


def end(folder: Path) -> None:
    """Note in ``run.json`` that the study was gone through to its end; whoever calls it may write in the folder."""
    info = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    info["sessions"][-1]["ended"] = _now()
    write_json(folder / "run.json", info)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def create(folder: Path, manifest: Manifest) -> IO[bytes]:
    """Make a new run folder, and return the right to write in it; ``TraceError`` if anything is there already."""
    _refuse_existing(folder)
    session = manifest.session()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = lock_folder(folder)
    except OSError as error:
        raise TraceError(f"{folder} cannot be made ({error}); choose another run.dir") from None
    try:
        _refuse_existing(folder)
        _write_manifest(folder, manifest, session)
    except BaseException:
        lock.close()
        raise
    return lock


def _refuse_existing(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(item.name != ".lock" for item in folder.iterdir())):
        what = "holds a run" if (folder / "run.json").exists() else "exists and is not empty"
        raise TraceError(
            f"{folder} {what}; nothing is overwritten: choose another run.dir"
            + (", or go on with it by run.resume=true" if what == "holds a run" else "")
        )
    for parent in folder.absolute().parents:
        if (parent / "run.json").exists():
            raise TraceError(f"{folder} is inside the run {parent}; choose a run.dir outside it")


def _write_manifest(folder: Path, manifest: Manifest, session: Mapping[str, Any]) -> None:
    content = {
        "schema": SCHEMA,
        "noise_layout": NOISE_LAYOUT,
        "run_id": secrets.token_hex(8),
        "config": dict(manifest.config),
        "worlds": dict(manifest.worlds),
        "policies": {name: dict(policies) for name, policies in manifest.policies.items()},
        "conventions": dict(manifest.conventions),
        "sessions": [session],
    }
    write_json(folder / "run.json", content)


def resume(folder: Path, manifest: Manifest) -> tuple[IO[bytes], list[str]]:
    """Prepare to go on with a run; returns the right to write in it, and what has changed since and may be harmless.

    ``TraceError`` if Worlds, policies, the noise layout or the design are not those of the run: its episodes would not
    be alike. Of the configuration, only what :data:`MAY_CHANGE` names may differ.
    """
    lock = lock_folder(folder)
    try:
        return lock, _go_on(folder, manifest)
    except BaseException:
        lock.close()
        raise


MAY_CHANGE = re.compile(
    r"seed|(run|record|report)(\..*)?|protocol\.(episodes|tasks)(\..*)?|worlds?(\..*)?|polic(y|ies)(\..*)?"
)
"""Settings that a run may be gone on with changed. Worlds and policies are compared by their fingerprints instead."""


def _go_on(folder: Path, manifest: Manifest) -> list[str]:
    for leftover in folder.glob(".run.json.*.tmp"):  # of one that was killed: whoever holds the lock alone writes them
        leftover.unlink()
    info = Run(folder).info
    lacking = sorted({"noise_layout", "worlds", "policies", "sessions"} - info.keys())
    if lacking:
        raise TraceError(f"{folder / 'run.json'} lacks {', '.join(lacking)}; the run can be read, and not gone on with")
    was, now = flat(info["config"]), flat(manifest.config)
    changed = [key for key in sorted(was.keys() | now.keys()) if was.get(key) != now.get(key)]
    differences = [
        f"{what} was [{before}] and is [{after}]"
        for what, before, after in [
            ("the noise layout", info["noise_layout"], NOISE_LAYOUT),
            *(
                (f"world {name!r}", info["worlds"].get(name, "absent"), fingerprint)
                for name, fingerprint in manifest.worlds.items()
            ),
            *(
                (f"policy {name!r} in {world!r}", info["policies"].get(world, {}).get(name, fingerprint), fingerprint)
                for world, policies in manifest.policies.items()
                for name, fingerprint in policies.items()
            ),
        ]
        if before != after
    ]
    differences += [
        f"{key} was {was.get(key)} and is {now.get(key)}" for key in changed if not MAY_CHANGE.fullmatch(key)
    ]
    if differences:
        raise TraceError(
            f"{folder} cannot be resumed: {'; '.join(differences)}; start a new run.dir, or give "
            "what has changed a name of its own"
        )
    session = manifest.session()
    before = info["sessions"][-1].get("versions", {}) if info["sessions"] else {}
    seeds = (info["config"].get("seed"), manifest.config.get("seed"))
    notes = (
        [f"the seed was {seeds[0]} and is {seeds[1]}: the run holds episodes of both"] if seeds[0] != seeds[1] else []
    )
    notes += [
        f"{package} was {before.get(package)} and is {version}"
        for package, version in session["versions"].items()
        if before.get(package) != version
    ]
    info["config"] = dict(manifest.config)
    for world, policies in manifest.policies.items():
        info["policies"].setdefault(world, {}).update(policies)
    info["conventions"] = _merged(info.get("conventions", {}), manifest.conventions)
    info["sessions"].append(session)
    write_json(folder / "run.json", info)
    return notes


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Conventions that were recorded, with those of what is run now: side, then World, then policy."""
    worlds = {**old.get("worlds", {}), **new.get("worlds", {})}
    policies = {
        world: {**old.get("policies", {}).get(world, {}), **new.get("policies", {}).get(world, {})} for world in worlds
    }
    return {"worlds": worlds, "policies": policies}


def flat(config: Any, prefix: str = "") -> dict[str, Any]:
    """A nested configuration as one mapping, keys joined by dots."""
    if not isinstance(config, Mapping):
        return {prefix: config}
    return {
        key: value
        for name, inner in config.items()
        for key, value in flat(inner, f"{prefix}.{name}" if prefix else str(name)).items()
    }


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON at ``path``, completely or not at all; ``TraceError`` where the disk refuses."""
    write_text(path, json.dumps(content, indent=2))


def write_text(path: Path, text: str) -> None:
    """Write text at ``path``, completely or not at all; ``TraceError`` where the disk refuses."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        try:
            with open(temporary, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    except OSError as error:
        raise refused(path, error) from None


def refused(path: Path, error: OSError) -> TraceError:
    """The error for a file that the disk did not take."""
    return TraceError(
        f"{path} cannot be written ({error.strerror or error}); make room or make the folder writable, and try again"
    )
