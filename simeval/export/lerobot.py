"""LeRobotDataset v3.0 folders, as lerobot 0.4 reads them: what of a run becomes which feature."""

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from simeval.episode import Episode
from simeval.errors import ConfigError, MissingPackageError, TraceError, UnsupportedError, unknown
from simeval.export.episodes import as_name, finished_by_world
from simeval.export.lerobot_writer import Column, Writer
from simeval.reader import Run
from simeval.settings import positive, truth
from simeval.types import WorldSpec

_ACTION_OF = {"executed": "action", "intended": "policy/intended"}
_CAMERA = "observation/image_"
_REPOSITORY = re.compile(r"[-_.\w]+/[-_.\w]+")


@dataclass(frozen=True, slots=True)
class LeRobotSettings:
    """What is exported, and as what.

    ``action``: ``executed``, what the World received, or ``intended``, what a policy disturbed by noise
    (``noisy_expert``) wanted to do, which a learner should imitate (Laskey et al. 2017, DART). ``state``: the
    observation that becomes ``observation.state`` (default: ``proprio``, else ``state``). ``environment_state``: one
    that becomes ``observation.environment_state``, which LeRobot's policies then read; none by default, as it is the
    simulator's truth. ``succeeded``: only episodes that succeeded. ``fps``: frames per second, where no World can be
    asked.
    """

    action: str = "executed"
    state: str | None = None
    environment_state: str | None = None
    succeeded: bool = False
    fps: float | None = None

    def __post_init__(self) -> None:
        if self.action not in _ACTION_OF:
            raise unknown("setting action", self.action, _ACTION_OF)
        truth("succeeded", self.succeeded)
        if self.fps is not None:
            positive("fps", self.fps)


def export_lerobot(
    run: Run, output: str | None, specs: Mapping[str, WorldSpec], settings: LeRobotSettings
) -> list[Path]:
    """Write one LeRobot dataset per World of ``run``; returns the folders.

    ``output`` is ``namespace/name`` in LeRobot's own folder (``$HF_LEROBOT_HOME``), ``simeval/<run>`` by default, or a
    folder, if it begins with ``/``, ``.`` or ``~``; with several Worlds, the World's name goes into it. A branch is
    exported whole. Episodes that are errors or have no step are left out. A frame is an observation and the action that
    followed it: the observation after the last action is in none. A frame's task is the instruction (the task's name
    where there is none); rollout, policy, task and success of an episode stand in ``meta/episodes``.

    Raises ``TraceError`` where a dataset exists, the disk refuses or an episode was altered, ``UnsupportedError`` where
    episodes have not the same arrays.
    """
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise MissingPackageError("pyarrow", "'simeval[lerobot]'") from None
    target = _folder(output or f"simeval/{as_name(run.path.resolve().name)}")
    worlds = finished_by_world(run, settings.succeeded)
    folders = {
        world: target if len(worlds) == 1 else target.with_name(f"{target.name}-{as_name(world)}") for world in worlds
    }
    for folder in folders.values():
        if folder.exists():
            raise TraceError(f"{folder} exists; nothing is overwritten: choose another --output")
    rates = {world: _frames_per_second(world, specs.get(world), settings) for world in worlds}
    for world, ids in worlds.items():
        columns = _columns(run.whole(ids[0]), settings)
        Writer(run, ids, columns, world, rates[world]).write(folders[world])
    return list(folders.values())


def _folder(output: str) -> Path:
    if output.startswith(("/", ".", "~")):
        return Path(output).expanduser()
    if not _REPOSITORY.fullmatch(output):
        raise ConfigError(f"{output!r} is no LeRobot dataset; use namespace/name, or a folder such as ./name")
    cache = Path(os.environ.get("HF_HOME", "~/.cache/huggingface"))
    return Path(os.environ.get("HF_LEROBOT_HOME", cache / "lerobot")).expanduser() / output


def _frames_per_second(world: str, spec: WorldSpec | None, settings: LeRobotSettings) -> float:
    if settings.fps is not None:
        rate = float(settings.fps)
    elif spec is not None:
        rate = 1.0 / spec.control_dt
    else:
        raise ConfigError(f"how many frames a second world {world!r} gives is not recorded; say so with fps=…")
    return round(rate) if math.isclose(rate, round(rate), rel_tol=1e-6) else rate


def _columns(episode: Episode, settings: LeRobotSettings) -> list[Column]:
    """The features of a dataset, as its first episode has them."""
    recorded = sorted(episode.source.paths())
    state = settings.state or ("proprio" if "observation/proprio" in recorded else "state")
    paths = {"observation.state": f"observation/{state}"}
    if settings.environment_state is not None:
        paths["observation.environment_state"] = f"observation/{settings.environment_state}"
    cameras = [path.removeprefix(_CAMERA) for path in recorded if path.startswith(_CAMERA)]
    paths |= {f"observation.images.{camera}": f"{_CAMERA}{camera}" for camera in cameras}
    paths["action"] = _ACTION_OF[settings.action]
    paths |= {"next.reward": "reward", "next.success": "success"}
    return [_column(episode, feature, path, recorded) for feature, path in paths.items()]


def _column(episode: Episode, feature: str, path: str, recorded: Sequence[str]) -> Column:
    if path not in recorded:
        hint = "; only policies with action noise record it" if path == _ACTION_OF["intended"] else ""
        raise ConfigError(f"{feature}: the run has no {path}{hint}; it has: {', '.join(recorded)}")
    array = episode.source.read(path, 0, 1)
    if path.startswith(_CAMERA):
        if array.dtype != "uint8" or array.ndim != 4 or array.shape[-1] != 3:
            raise UnsupportedError(f"{path} is {array.dtype}{list(array.shape[1:])}; LeRobot takes uint8 [H, W, 3]")
        return Column(feature, path, array.shape[1:], "image")
    dtype = "bool" if array.dtype == bool else "float32"
    return Column(feature, path, (math.prod(array.shape[1:]),), dtype)
