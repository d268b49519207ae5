"""Behavioural canaries: a short rollout of fixed actions per suite, whose last state tells one physics from another.

A version number says what was installed; a canary says what it does. The states of the reference installation ship in
``assets/canaries.json``; ``simeval doctor`` plays them again here and compares.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import numpy as np

from simeval.errors import ConfigError, MissingError, SimevalError
from simeval.noise import Key

FORMAT = "simeval-canaries/1"
_SHIPPED = ("canaries.json",)
_SEED = 20
_ROUNDING = 1e-9
"""Relative difference up to which two states differ by rounding: another processor or numerical library."""
_SLIGHT = 1e-5
"""Up to which the physics is the same for what episodes show on average, though not step by step."""
_TIMEOUT = 300.0


@dataclass(frozen=True, slots=True)
class Canary:
    """A rollout of ``steps`` keyed random actions from one start of ``task``: its ``settings`` (of a configuration).

    ``state`` is what it ends in: the observations of numbers, one after the other, and the return. ``versions`` is the
    World's ``dynamics``, which names the versions it was made with.
    """

    name: str
    settings: tuple[str, ...]
    task: str
    steps: int
    state: tuple[float, ...] = ()
    versions: str = ""


Verdict = Literal["same", "rounding", "slight", "differs", "absent", "broken"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What a canary did here: the verdict, a sentence that explains it, and what was run here and there, in full."""

    name: str
    verdict: Verdict
    text: str
    detail: str = ""


def shipped() -> list[Canary]:
    """The canaries of the installation that simeval was tested with."""
    return _parsed(json.loads(files("assets").joinpath(*_SHIPPED).read_text(encoding="utf-8")), "assets/canaries.json")


def read(path: Path) -> list[Canary]:
    """The canaries of another installation, written by :func:`write`."""
    try:
        return _parsed(json.loads(path.read_text(encoding="utf-8")), str(path))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} cannot be read as canaries ({error}); `simeval doctor --record` writes them"
        ) from None


def write(path: Path, canaries: Sequence[Canary]) -> None:
    """Write canaries to a new file."""
    if path.exists():
        raise ConfigError(f"{path} exists; choose another name, or remove it first")
    path.write_text(json.dumps({"format": FORMAT, "canaries": [asdict(c) for c in canaries]}, indent=1) + "\n")


def _parsed(data: Any, source: str) -> list[Canary]:
    if not isinstance(data, Mapping) or data.get("format") != FORMAT:
        raise ConfigError(f"{source} is no {FORMAT} file; `simeval doctor --record` writes one")
    try:
        return [_one(item) for item in data["canaries"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{source}: a canary cannot be read ({error!r}); the file was altered") from None


def _one(item: Any) -> Canary:
    """A canary from JSON data; ``TypeError`` where an entry is of another type."""
    state, settings = (tuple(map(kind, _of(list, item[name]))) for name, kind in (("state", float), ("settings", str)))
    texts = {name: _of(str, item[name]) for name in ("name", "task", "versions")}
    return Canary(**{**item, **texts, "settings": settings, "state": state, "steps": _of(int, item["steps"])})


def _of(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value


def play(canary: Canary) -> Canary:
    """The canary as it ends here."""
    from simeval.cli.build import build_world, resolved, world_configs
    from simeval.cli.compose import compose_config

    ((_, entry),) = world_configs(compose_config("run", canary.settings)).items()
    world = build_world(resolved(entry), num_slots=1)
    try:
        stream, space = Key(_SEED).stream("world"), world.action_space
        draws = Key(_SEED).stream("canary").event(canary.task)
        low, high = np.nan_to_num(space.low, neginf=-1), np.nan_to_num(space.high, posinf=1)
        actions = (low + (high - low) * draws.random((canary.steps, *space.shape))).astype(space.dtype)
        result = world.reset([0], [world.start(canary.task, _SEED)], [stream.key(0)])
        total = 0.0
        for step, action in enumerate(actions):
            result = world.step([0], action[None], [stream.key(step + 1)])
            total += float(result.reward[0])
            if result.terminated[0] or result.truncated[0]:
                break
        numbers = [
            np.ravel(value[0]).astype(np.float64)
            for _, value in sorted(result.observation.items())
            if value.dtype.kind == "f"
        ]
        state = (*np.concatenate(numbers).tolist(), total)
        return Canary(canary.name, canary.settings, canary.task, canary.steps, state, world.snapshot_fingerprint)
    finally:
        world.close()


def play_apart(canary: Canary) -> Canary:
    """:func:`play` in a process of its own, which a simulator that crashes or hangs cannot take along."""
    code = f"import sys; from {__name__} import answer; answer(sys.argv[1])"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, json.dumps(asdict(canary))], capture_output=True, text=True, timeout=_TIMEOUT
        )
    except subprocess.TimeoutExpired:
        raise SimevalError(f"no answer within {_TIMEOUT:.0f} s") from None
    lines = done.stdout.strip().splitlines()
    try:
        answered = json.loads(lines[-1])
    except (IndexError, ValueError):
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise SimevalError(last) from None
    if "missing" in answered:
        raise MissingError(answered["missing"])
    if "error" in answered:
        raise SimevalError(answered["error"])
    return _parsed({"format": FORMAT, "canaries": [answered]}, "the answer")[0]


def answer(text: str) -> None:
    """The other process's part: one line of JSON on standard output."""
    (canary,) = _parsed({"format": FORMAT, "canaries": [json.loads(text)]}, "the question")
    try:
        print(json.dumps(asdict(play(canary))))
    except SimevalError as error:
        kind = "missing" if isinstance(error, MissingError) else "error"
        print(json.dumps({kind: str(error)}))


def compare(canary: Canary, play_one: Callable[[Canary], Canary] = play_apart) -> Finding:
    """What a canary does here, against how it ended where it was recorded."""
    try:
        here = play_one(canary)
    except MissingError as error:
        return Finding(canary.name, "absent", str(error))
    except SimevalError as error:
        return Finding(canary.name, "broken", f"{canary.task} could not be played: {error}")
    detail = f"{' '.join(canary.settings)}; here: {here.versions}; recorded: {canary.versions}"
    there = np.array(canary.state)
    now = np.array(here.state)
    if now.shape != there.shape:
        return Finding(
            canary.name,
            "differs",
            f"{canary.task} shows {len(now)} numbers here, {len(there)} where it was recorded",
            detail,
        )
    if np.array_equal(now, there, equal_nan=True):
        return Finding(canary.name, "same", f"{canary.task}: bit for bit as recorded after {canary.steps} steps")
    gap = float(np.max(np.abs(now - there) / np.maximum(1.0, np.abs(there))))
    if gap <= _ROUNDING:
        return Finding(
            canary.name,
            "rounding",
            f"{canary.task}: differs by rounding ({gap:.1g}) after {canary.steps} steps: another processor or "
            "numerical library; the physics is the same, and long episodes with contacts may still end otherwise",
            detail,
        )
    if gap <= _SLIGHT:
        return Finding(
            canary.name,
            "slight",
            f"{canary.task}: off by {gap:.1g} after {canary.steps} steps, as on another processor or with another "
            "numerical library. Results made here are exact and repeatable here; beside results from another machine, "
            "success rates compare, and single episodes may end otherwise",
            detail,
        )
    return Finding(
        canary.name,
        "differs",
        f"the physics of this installation differs: after {canary.steps} equal actions {canary.task} is off by up to "
        f"{gap:.2g}; {_versions(here.versions, canary.versions)}. Scores made here compare with scores made here only",
        detail,
    )


_VERSION = re.compile(r"([A-Za-z][\w-]*)[ =](\d+(?:\.\d+)+)")


def _versions(here: str, there: str) -> str:
    new, old = (dict(_VERSION.findall(text)) for text in (here, there))
    apart = [name for name in {**old, **new} if new.get(name) != old.get(name)]
    if not apart:
        return "the versions are the same: another processor, or a package that was changed"
    told = [", ".join(f"{name} {found[name]}" for name in apart if name in found) for found in (new, old)]
    return f"here {told[0] or 'without'}, recorded with {told[1] or 'nothing of the kind'}"
