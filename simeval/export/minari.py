"""Minari 0.5 datasets: T + 1 observations, T actions, images lossless.

Minari encodes images as JPEG and decodes whatever Pillow can open, so frames are stored as PNG: its own loader reads
them back bit for bit.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
from gymnasium import spaces

from simeval.episode import Episode
from simeval.errors import ConfigError, MissingPackageError, TraceError, UnsupportedError
from simeval.export.episodes import as_name, finished_by_world
from simeval.folder import refused
from simeval.reader import Run
from simeval.types import WorldSpec

_ID = re.compile(r"(?:[-_\w][-_\w/]*/)?[-_\w]+-v\d+")


def export_minari(run: Run, dataset_id: str | None, specs: Mapping[str, WorldSpec]) -> list[Path]:
    """Write one Minari dataset per World of ``run``, into Minari's own folder; returns the folders.

    ``dataset_id`` is ``(namespace/)name-vN``, ``simeval/<run>-v0`` by default; with several Worlds, the World's name
    goes into it. A branch is exported whole, its ancestors' steps before its own. Episodes that are errors or have no
    step are left out. An episode's policy, task, instruction, success and rollout id are its ``options``; signals and
    success are its ``infos`` (T + 1, as after a reset). Raises ``TraceError`` where a dataset exists,
    where the disk refuses, and, naming the episode, where one was altered.
    """
    minari = _minari()
    chosen = dataset_id or f"simeval/{as_name(run.path.resolve().name)}-v0"
    if not _ID.fullmatch(chosen):
        raise ConfigError(f"{chosen!r} is no Minari dataset id; use (namespace/)name-vN, e.g. simeval/my-run-v0")
    worlds = finished_by_world(run)
    targets = {world: chosen if len(worlds) == 1 else _with_world(chosen, world) for world in worlds}
    for target in targets.values():
        if minari.storage.get_dataset_path(target).exists():
            raise TraceError(f"Minari dataset {target} exists; nothing is overwritten: choose another name or version")
    return [_write(minari, run, worlds[world], target, specs.get(world)) for world, target in targets.items()]


def _minari() -> Any:
    try:
        import minari
        import minari.namespace
        import minari.serialization
        import minari.storage
    except ImportError:
        raise MissingPackageError("minari", "'minari[hdf5]>=0.5.3'") from None
    return minari


def _with_world(dataset_id: str, world: str) -> str:
    name, _, version = dataset_id.rpartition("-v")
    return f"{name}-{as_name(world)}-v{version}"


def _write(minari: Any, run: Run, ids: list[str], dataset_id: str, spec: WorldSpec | None) -> Path:
    namespace = dataset_id.rpartition("/")[0]
    if namespace and namespace not in minari.namespace.list_local_namespaces():
        minari.namespace.create_namespace(namespace)
    folder = Path(minari.storage.get_dataset_path(dataset_id))
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        (temporary / "data").mkdir(parents=True)
        observation_space, action_space = _spaces(next(_episodes(run, ids)), spec)
        total = _write_episodes(temporary / "data" / "main_data.hdf5", _episodes(run, ids), observation_space)
        policies = sorted({run.rollout(id_).policy for id_ in ids})
        size = sum(path.stat().st_size for path in (temporary / "data").iterdir())
        metadata = {
            "dataset_id": dataset_id,
            "total_episodes": len(ids),
            "total_steps": total,
            "data_format": "hdf5",
            "observation_space": minari.serialization.serialize_space(observation_space),
            "action_space": minari.serialization.serialize_space(action_space),
            "minari_version": minari.__version__,
            "dataset_size": round(size / 1e6, 1),
            "algorithm_name": ", ".join(policies),
            "description": f"Episodes of the simeval run {run.path.name}; images are PNG, which is lossless.",
        }
        (temporary / "data" / "metadata.json").write_text(json.dumps(metadata))
        os.rename(temporary, folder)
    except OSError as error:
        raise refused(folder, error) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _episodes(run: Run, ids: list[str]) -> Iterator[Episode]:
    return (run.whole(id_) for id_ in ids)


def _spaces(episode: Episode, spec: WorldSpec | None) -> tuple[spaces.Dict, gymnasium.Space[Any]]:
    recorded: dict[str, gymnasium.Space[Any]] = {key: _box(array) for key, array in episode.observation.items()}
    if spec is None:
        return spaces.Dict(recorded), _box(episode.action)
    declared = spec.observation_space.spaces
    return spaces.Dict({key: declared.get(key, box) for key, box in recorded.items()}), spec.action_space


def _box(array: np.ndarray) -> spaces.Box:
    """The widest space of one row of ``array``."""
    shape = array.shape[1:]
    if array.dtype == np.bool_:
        return spaces.Box(0, 1, shape, np.uint8)
    if np.issubdtype(array.dtype, np.integer):
        limits = np.iinfo(array.dtype)
        return spaces.Box(limits.min, limits.max, shape, array.dtype.type)
    return spaces.Box(-np.inf, np.inf, shape, array.dtype.type)


def _write_episodes(path: Path, episodes: Iterator[Episode], space: spaces.Dict) -> int:
    total = 0
    with h5py.File(path, "w", track_order=True) as file:
        for index, episode in enumerate(episodes):
            group = file.create_group(f"episode_{index}")
            length = len(episode.reward)
            total += length
            group.attrs["id"] = index
            group.attrs["seed"] = episode.rollout.seed
            group.attrs["total_steps"] = length
            for name, value in _options(episode).items():
                group.attrs[f"options/{name}"] = value
            _write_observations(group.create_group("observations"), episode, space, length)
            group["actions"] = episode.action
            group["rewards"] = episode.reward
            group["terminations"] = episode.terminated
            group["truncations"] = episode.truncated
            infos = group.create_group("infos")
            infos["success"] = np.append(episode.ending.solved_at_reset, episode.success)
            for name, array in episode.signals.items():
                infos[f"signals/{name}"] = array
    return total


def _options(episode: Episode) -> dict[str, Any]:
    rollout = episode.rollout
    return {
        "rollout": rollout.id,
        "task": rollout.start.task,
        "instruction": rollout.start.instruction,
        "policy": rollout.policy,
        "success": episode.succeeded,
    }


def _write_observations(group: h5py.Group, episode: Episode, space: spaces.Dict, length: int) -> None:
    observation = dict(episode.observation)
    if observation.keys() != space.spaces.keys():
        raise UnsupportedError(
            f"episode {episode.id} has observations {sorted(observation)}, others have {sorted(space.spaces)}; a "
            "Minari dataset needs the same in all episodes"
        )
    for key, array in observation.items():
        if array.shape != (length + 1, *(space[key].shape or ())):
            raise UnsupportedError(
                f"episode {episode.id}: observation {key!r} is {array.shape} for {length} actions; expected "
                f"{(length + 1, *(space[key].shape or ()))}"
            )
        if _read_as_images(space[key]):
            group.create_dataset(key, data=_png(array, key), dtype=h5py.vlen_dtype(np.uint8))
        else:
            group[key] = array.astype(np.uint8) if array.dtype == np.bool_ else array


def _read_as_images(space: gymnasium.Space[Any]) -> bool:
    from minari.dataset.minari_storage import is_image_space

    return is_image_space(space)


def _png(frames: np.ndarray, key: str) -> np.ndarray:
    import cv2

    if frames.ndim != 4 or frames.shape[-1] != 3:
        raise UnsupportedError(
            f"observation {key!r} is {frames.shape[1:]}; Minari keeps images of shape [H, W, 3] only"
        )
    encoded = np.empty(len(frames), dtype=object)
    for index, frame in enumerate(frames):
        encoded[index] = cv2.imencode(".png", frame[..., ::-1])[1]
    return encoded
