"""A toy world model: linear latent dynamics learned from rollouts of the toy simulator; numpy only."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from simeval.errors import UnsupportedError
from simeval.noise import Key, StepKey, standard_normal
from simeval.settings import names, slot_count
from simeval.testing.toys import TOY_TASKS, ToySimulator, draw_toy, judge_toy, toy_layout, toy_spaces, toy_start
from simeval.types import Array, Snapshot, Start, TimeStep
from simeval.world import World

_LATENT = 12
_HISTORY = 2
_DECIMALS = 9


@dataclass(frozen=True)
class _Weights:
    """Latent z = (observation - mean) @ encoder; z' = [z, z before, action] @ dynamics + normal @ noise."""

    mean: np.ndarray
    encoder: np.ndarray
    decoder: np.ndarray
    dynamics: np.ndarray
    noise: np.ndarray

    def digest(self) -> str:
        digest = hashlib.blake2b(digest_size=8)
        for array in (self.mean, self.encoder, self.decoder, self.dynamics, self.noise):
            digest.update(array.tobytes())
        return digest.hexdigest()


@lru_cache(maxsize=4)
def _train(episodes: int, steps: int, seed: int) -> _Weights:
    """Least squares on keyed random rollouts, rounded so that the last bits of the linear algebra do not matter."""
    world = ToySimulator(episodes)
    slots = range(episodes)
    seeds = [Key(seed).integer("train", index) >> 32 for index in slots]
    starts = [world.start(TOY_TASKS[index % len(TOY_TASKS)], seeds[index]) for index in slots]
    streams = [Key(seeds[index]).stream("train-world") for index in slots]
    observations = [world.reset(slots, starts, [stream.key(0) for stream in streams]).observation["state"]]
    drive = np.stack([Key(seed).stream("train-action").event(index).standard_normal((steps, 2)) for index in slots])
    actions = np.zeros((steps + 1, episodes, 2), dtype=np.float32)
    for t in range(steps):
        actions[t + 1] = np.clip(0.9 * actions[t] + 0.4 * drive[:, t], -1.0, 1.0)
        step = world.step(slots, actions[t + 1], [stream.key(t + 1) for stream in streams])
        observations.append(step.observation["state"])
    data = np.stack(observations)
    flat = data.reshape(-1, data.shape[-1])
    mean = flat.mean(axis=0)
    spread, directions = np.linalg.eigh(np.cov((flat - mean).T))
    order = np.argsort(spread)[::-1][:_LATENT]
    directions = directions[:, order] * np.sign(directions[np.abs(directions[:, order]).argmax(axis=0), order])
    encoder = np.round(directions / np.sqrt(spread[order]), _DECIMALS)
    latent = (data - mean) @ encoder
    decoder, *_ = np.linalg.lstsq(latent.reshape(-1, _LATENT), flat - mean, rcond=None)
    inputs = np.concatenate([latent[1:-1], latent[:-2], actions[2:]], axis=-1).reshape(-1, _HISTORY * _LATENT + 2)
    targets = latent[2:].reshape(-1, _LATENT)
    dynamics, *_ = np.linalg.lstsq(inputs, targets, rcond=None)
    variance, axes = np.linalg.eigh(np.cov((targets - inputs @ dynamics).T))
    noise = (axes * np.sqrt(np.maximum(variance, 0.0))) @ axes.T
    arrays = (mean, encoder, decoder, dynamics, noise)
    return _Weights(*(np.asarray(array).round(_DECIMALS) for array in arrays))


def _linear(vectors: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """``vectors @ matrix``, summed in an order that does not depend on how many vectors there are."""
    total = vectors[:, 0, None] * matrix[0]
    for index in range(1, matrix.shape[0]):
        total = total + vectors[:, index, None] * matrix[index]
    return total


class ToyWorldModel(World):
    """The toy simulator as a learned model imagines it: an encoder, linear latent dynamics, a decoder, keyed noise.

    It begins from the first observation of a start, keeps the last two latents of every slot, and judges success on the
    observation it decodes. Signals: ``latent`` [12]. Same spaces and tasks as ``ToySimulator``.
    """

    name = "toy_model"
    tasks = TOY_TASKS
    control_dt = ToySimulator.control_dt
    success_hold = ToySimulator.success_hold

    def __init__(
        self, num_slots: int = 4, cameras: str | Sequence[str] = (), image_size: int = 16, train_seed: int = 0
    ):
        self.num_slots = slot_count(num_slots)
        self.observation_space, self.action_space = toy_spaces(cameras, image_size)
        self._weights = _train(episodes=32, steps=60, seed=train_seed)
        self.dynamics = f"toy_model/1 weights={self._weights.digest()}"
        self.fingerprint = f"{self.dynamics} cameras={','.join(names('cameras', cameras))} {image_size}px"
        self._image_size = image_size
        self._history = np.zeros((num_slots, _HISTORY, _LATENT))
        self._task = np.full(num_slots, -1)

    def start(self, task: str, seed: int) -> Start:
        """See ``World.start``."""
        self.check_task(task)
        return toy_start(task, seed)

    def horizon(self, task: str) -> int:
        """See ``World.horizon``."""
        self.check_task(task)
        return 60 if task.startswith("reach") else 150

    def reset(self, slots: Sequence[int], starts: Sequence[Start], keys: Sequence[StepKey]) -> TimeStep:
        """See ``World.reset``."""
        self.check_slots(slots)
        for start in starts:
            self.check_task(start.task)
            for perturbation in start.perturbations:
                raise UnsupportedError(f"world {self.name!r} has no perturbation axis {perturbation.axis!r}")
        rows = np.asarray(slots)
        first = np.stack([toy_layout(start) for start in starts])
        latent = _linear(first - self._weights.mean, self._weights.encoder)
        self._history[rows] = latent[:, None]
        self._task[rows] = [self.tasks.index(start.task) for start in starts]
        return self._time_step(rows)

    def step(self, slots: Sequence[int], actions: Array, keys: Sequence[StepKey]) -> TimeStep:
        """See ``World.step``."""
        self.check_slots(slots)
        self._check_running(slots)
        self.check_actions(slots, actions, keys)
        rows = np.asarray(slots)
        history = self._history[rows]
        inputs = np.concatenate([history[:, 0], history[:, 1], np.asarray(actions, dtype=np.float64)], axis=1)
        noise = _linear(standard_normal(keys, (_LATENT,), "latent"), self._weights.noise)
        latent = np.clip(_linear(inputs, self._weights.dynamics) + noise, -1e3, 1e3)
        self._history[rows] = np.stack([latent, history[:, 0]], axis=1)
        return self._time_step(rows)

    def snapshot(self, slots: Sequence[int]) -> list[Snapshot]:
        """See ``World.snapshot``."""
        self.check_slots(slots)
        self._check_running(slots)
        return [
            Snapshot(self.snapshot_fingerprint, {"history": self._history[slot].copy(), "task": int(self._task[slot])})
            for slot in slots
        ]

    def restore(self, slots: Sequence[int], snapshots: Sequence[Snapshot]) -> TimeStep:
        """See ``World.restore``."""
        self.check_slots(slots)
        self.check_snapshots(snapshots)
        for slot, snapshot in zip(slots, snapshots, strict=True):
            self._history[slot] = snapshot.state["history"]
            self._task[slot] = snapshot.state["task"]
        return self._time_step(np.asarray(slots))

    def render(self, slots: Sequence[int]) -> np.ndarray:
        """See ``World.render``."""
        self._check_running(slots)
        return draw_toy(self._decode(np.asarray(slots)), 96)

    def _check_running(self, slots: Sequence[int]) -> None:
        for slot in slots:
            if self._task[slot] < 0:
                raise RuntimeError(f"world {self.name!r}: slot {slot} was never reset; call reset or restore first")

    def _decode(self, rows: np.ndarray) -> np.ndarray:
        space = self.observation_space["state"]
        state = _linear(self._history[rows, 0], self._weights.decoder) + self._weights.mean
        return np.clip(state, space.low, space.high)  # type: ignore[attr-defined]

    def _time_step(self, rows: np.ndarray) -> TimeStep:
        state = self._decode(rows)
        reward, success, terminated = judge_toy(state, self._task[rows])
        observation = {"state": state}
        if "image_top" in self.observation_space.spaces:
            observation["image_top"] = draw_toy(state, self._image_size)
        signals = {"latent": self._history[rows, 0]}
        return TimeStep(observation, reward, terminated, np.zeros(len(rows), dtype=bool), success, signals)
