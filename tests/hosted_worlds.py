"""Worlds that tests build in worker processes: light ones, and ones that take their process down."""

import ctypes
import importlib.util
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import gymnasium
import numpy as np

from simeval.noise import StepKey, standard_normal
from simeval.types import Array, Snapshot, Start, TimeStep
from simeval.world import World
from simeval.wrappers import Delegate

WAYS = {
    "exit": lambda: os._exit(3),
    "segfault": lambda: ctypes.string_at(0),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "hang": lambda: time.sleep(3600),
}


class Counter(World):
    """Counts up from a start's seed, with a little noise; needs nothing but numpy and gymnasium.

    Where an episode's seed is among ``deadly``, the process ends at step 3 in the given way: always, or only once where
    ``once`` is a folder to remember it in. ``where``: the call in which it happens.
    """

    name = "counter"
    tasks = ("count", "recount")
    control_dt = 0.1
    success_hold = 0

    def __init__(
        self,
        num_slots: int = 2,
        deadly: Sequence[int] = (),
        way: str = "exit",
        once: str | None = None,
        where: str = "step",
        image_size: int = 0,
    ):
        self.num_slots = num_slots
        self.fingerprint = "counter"
        spaces: dict[str, gymnasium.Space] = {"state": gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)}
        if image_size:
            spaces["image_front"] = gymnasium.spaces.Box(0, 255, (image_size, image_size, 3), np.uint8)
        self.observation_space = gymnasium.spaces.Dict(spaces)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self._state = np.zeros((num_slots, 2))
        self._deadly, self._way, self._once, self._where = frozenset(deadly), way, once, where
        self._seeds = [-1] * num_slots
        print("a World is being built")

    def start(self, task: str, seed: int) -> Start:
        self.check_task(task)
        return Start(task, f"{task} from {seed}", seed=seed)

    def horizon(self, task: str) -> int:
        self.check_task(task)
        return 8

    def reset(self, slots: Sequence[int], starts: Sequence[Start], keys: Sequence[StepKey]) -> TimeStep:
        self.check_slots(slots)
        for slot, start in zip(slots, starts, strict=True):
            assert start.seed is not None
            self._seeds[slot] = start.seed
            self._state[slot] = start.seed, 0.0
        self._die("reset", slots, 0)
        return self._time_step(slots)

    def step(self, slots: Sequence[int], actions: Array, keys: Sequence[StepKey]) -> TimeStep:
        self.check_slots(slots)
        self.check_actions(slots, actions, keys)
        self._state[list(slots)] += np.concatenate([actions, standard_normal(keys, (1,), "count")], axis=1)
        for slot, key in zip(slots, keys, strict=True):
            self._die("step", [slot], key.step)
        return self._time_step(slots)

    def snapshot(self, slots: Sequence[int]) -> list[Snapshot]:
        self._die("snapshot", slots, 3)
        return [
            Snapshot(self.fingerprint, {"seed": self._seeds[slot], "state": self._state[slot].copy()}) for slot in slots
        ]

    def restore(self, slots: Sequence[int], snapshots: Sequence[Snapshot]) -> TimeStep:
        self.check_snapshots(snapshots)
        for slot, snapshot in zip(slots, snapshots, strict=True):
            self._seeds[slot], self._state[slot] = snapshot.state["seed"], snapshot.state["state"]
        self._die("restore", slots, 3)
        return self._time_step(slots)

    def render(self, slots: Sequence[int]) -> np.ndarray:
        shade = self._state[list(slots), 0].astype(np.uint8)
        return np.zeros((len(slots), 4, 4, 3), np.uint8) + shade[:, None, None, None]

    def _die(self, where: str, slots: Sequence[int], step: int) -> None:
        for slot in slots:
            seed = self._seeds[slot]
            if where != self._where or seed not in self._deadly or step not in (0, 3):
                continue
            if self._once is not None:
                try:
                    (Path(self._once) / str(seed)).mkdir()
                except FileExistsError:
                    continue
            print(f"seed {seed} ends this process", file=sys.stderr, flush=True)
            WAYS[self._way]()

    def _time_step(self, slots: Sequence[int]) -> TimeStep:
        rows, count = list(slots), len(slots)
        observation = {"state": self._state[rows].copy()}
        if "image_front" in self.observation_space.spaces:
            side = self.observation_space["image_front"].shape[0]
            observation["image_front"] = np.empty((count, side, side, 3), np.uint8)
            observation["image_front"][:] = (
                (self._state[rows, :1] * 100).astype(np.int64).astype(np.uint8)[:, :, None, None]
            )
        never = np.zeros(count, bool)
        return TimeStep(observation, self._state[rows, 0].copy(), never, never.copy(), never.copy())


class Loaded(Counter):
    """Its fingerprint says where it is and what has been imported there of what it does not need."""

    def __init__(self, num_slots: int):
        super().__init__(num_slots)
        loaded = [name for name in ("h5py", "scipy", "hydra", "torch") if name in sys.modules]
        self.fingerprint = f"{sys.executable} {loaded} {importlib.util.find_spec('h5py')}"


class Wrapped(Delegate):
    """Passes everything on to another World."""

    def __init__(self, num_slots: int, world: World):
        super().__init__(world)


def suicidal(num_slots: int) -> World:
    os._exit(9)


def needy(num_slots: int) -> World:
    import h5py

    return Counter(num_slots, once=h5py.__name__)
