"""Making a run folder, and going on with one: ``run.json`` says what the run is, and is never overwritten unasked."""

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from simeval.errors import TraceError
from simeval.noise import NOISE_LAYOUT
from simeval.provenance import git_commit, hardware, versions
from simeval.reader import Run
from simeval.trace import SCHEMA


@dataclass(frozen=True)
class Manifest:
    """What ``run.json`` records beside the environment: configuration, and fingerprints by World and policy."""

    config: Mapping[str, Any]
    worlds: Mapping[str, str]
    policies: Mapping[str, Mapping[str, str]]

    def session(self) -> dict[str, Any]:
        """One stretch of writing: when, with which versions, on what."""
        return {
            "began": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": versions(),
            "hardware": hardware(),
            "git": git_commit(Path.cwd()),
            "config": dict(self.config),
        }


def create(folder: Path, manifest: Manifest) -> None:
    """Make a new run folder; ``TraceError`` if anything is there already."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        what = "holds a run" if (folder / "run.json").exists() else "exists and is not empty"
        raise TraceError(
            f"{folder} {what}; nothing is overwritten: choose another run.dir"
            + (", or go on with it by run.resume=true" if what == "holds a run" else "")
        )
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "schema": SCHEMA,
        "noise_layout": NOISE_LAYOUT,
        "run_id": secrets.token_hex(8),
        "config": dict(manifest.config),
        "worlds": dict(manifest.worlds),
        "policies": {name: dict(policies) for name, policies in manifest.policies.items()},
        "sessions": [manifest.session()],
    }
    write_json(folder / "run.json", content)


def resume(folder: Path, manifest: Manifest) -> list[str]:
    """Prepare to go on with a run; returns what has changed since and may be harmless.

    ``TraceError`` if Worlds, policies or the noise layout are not those of the run: its episodes would not be alike.
    """
    info = Run(folder).info
    differences = [
        f"{what} was [{before}] and is [{now}]"
        for what, before, now in [
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
        if before != now
    ]
    if differences:
        raise TraceError(
            f"{folder} cannot be resumed: {'; '.join(differences)}; start a new run.dir, or give "
            "what has changed a name of its own"
        )
    session = manifest.session()
    before = info["sessions"][-1]["versions"]
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
    info["sessions"].append(session)
    write_json(folder / "run.json", info)
    return notes


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON at ``path``, completely or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open(temporary, "w") as file:
        json.dump(content, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
