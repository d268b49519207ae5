"""A toy simulator: a disc pushes a puck into a zone named by the instruction; numpy only."""

from collections.abc import Sequence

import gymnasium
import numpy as np

from simeval.errors import ConfigError, UnsupportedError
from simeval.noise import Key, StepKey, standard_normal
from simeval.settings import image_side, names, slot_count
from simeval.types import Array, Snapshot, Start, TimeStep
from simeval.world import World

_SIDES = ("left", "right")
_VERBS = {"reach": "move to the {} zone", "push": "push the puck into the {} zone"}
TOY_TASKS = tuple(f"{verb}-{side}" for verb in _VERBS for side in _SIDES)
"""``reach-left``, ``reach-right``, ``push-left``, ``push-right``."""

TOY_REACH = 0.14
"""Distance between the centres of disc and puck at which they touch [m]."""
_DISC_RADIUS, _PUCK_RADIUS, _ZONE_RADIUS = 0.06, 0.08, 0.15
_SUBSTEPS, _DT = 4, 0.0125
_MAX_FORCE, _STIFFNESS, _PUCK_MASS = 6.0, 200.0, 0.5
_DAMPING = np.array([[3.0], [4.0]])  # of the disc, of the puck
_EDGE, _MAX_SPEED = 1.0, 3.0
_COLOURS = {"table": (60, 60, 60), "left": (200, 60, 60), "right": (60, 60, 220), "puck": (230, 200, 60)}
_DISC_COLOUR = (240, 240, 240)
_FOREVER = np.iinfo(np.int64).max


def toy_start(task: str, seed: int) -> Start:
    """The start of a toy episode: its layout is drawn by ``seed``; the zone to aim for is in the instruction only."""
    verb, side = task.split("-")
    return Start(task, _VERBS[verb].format(side), seed=seed)


def toy_layout(start: Start) -> np.ndarray:
    """The initial ``state`` [12] of a start: position and velocity of the disc and of the puck, left and right zone."""
    if start.seed is None:
        raise ConfigError(f"a toy episode is drawn by a seed; received {start}; make it with World.start(task, seed)")
    draws = Key(start.seed).stream("start").event("layout").random(8)
    puck = np.array([0.4 * draws[0] - 0.2, 0.6 * draws[1] - 0.3])
    angle, radius = 2 * np.pi * draws[2], 0.25 + 0.2 * draws[3]
    disc = puck + radius * np.array([np.cos(angle), np.sin(angle)])
    zones = np.array([[-0.5 - 0.3 * draws[4], draws[5] - 0.5], [0.5 + 0.3 * draws[6], draws[7] - 0.5]])
    for perturbation in start.perturbations:
        if perturbation.axis == "initial_state.puck":
            offset = Key(start.seed).stream("start").event("puck").standard_normal(2)
            puck = puck + perturbation.level * offset / np.linalg.norm(offset)
    return np.concatenate([disc, np.zeros(2), puck, np.zeros(2), zones.reshape(4)])


def toy_spaces(cameras: str | Sequence[str], image_size: int) -> tuple[gymnasium.spaces.Dict, gymnasium.spaces.Box]:
    """Observation and action space of the toys: ``state`` [12], ``image_top`` [S, S, 3]; a force [2] in 6 N."""
    high = np.array([_EDGE, _EDGE, _MAX_SPEED, _MAX_SPEED] * 2 + [_EDGE] * 4)
    spaces: dict[str, gymnasium.Space] = {"state": gymnasium.spaces.Box(-high, high, dtype=np.float64)}
    image_side(image_size)
    for camera in names("cameras", cameras):
        if camera != "top":
            raise ConfigError(f"unknown camera {camera!r} of a toy world; available: top")
        spaces["image_top"] = gymnasium.spaces.Box(0, 255, (image_size, image_size, 3), dtype=np.uint8)
    return gymnasium.spaces.Dict(spaces), gymnasium.spaces.Box(-1.0, 1.0, (2,), dtype=np.float32)


def draw_toy(state: np.ndarray, size: int) -> np.ndarray:
    """Pictures of ``state`` [n, 12] from above, uint8 ``[n, size, size, 3]``, x to the right and y up."""
    centres = (np.arange(size) + 0.5) / size * 2.0 - 1.0
    x, y = centres[None, None, :], -centres[None, :, None]
    image = np.empty((len(state), size, size, 3), dtype=np.uint8)
    image[:] = _COLOURS["table"]
    discs = (
        (8, _ZONE_RADIUS, _COLOURS["left"]),
        (10, _ZONE_RADIUS, _COLOURS["right"]),
        (4, _PUCK_RADIUS, _COLOURS["puck"]),
        (0, _DISC_RADIUS, _DISC_COLOUR),
    )
    for column, radius, colour in discs:
        dx, dy = x - state[:, column, None, None], y - state[:, column + 1, None, None]
        image[dx * dx + dy * dy <= max(radius, 1.0 / size) ** 2] = colour
    return image


def judge_toy(state: np.ndarray, task: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Reward [n], success [n] and terminated [n] (the puck is off the table) of ``state`` [n, 12] in tasks [n]."""
    rows = np.arange(len(state))
    mover = np.where(task[:, None] >= 2, state[:, 4:6], state[:, 0:2])
    zone = state[:, 8:12].reshape(-1, 2, 2)[rows, task % 2]
    distance = _norm(mover - zone)
    off_table = (np.abs(state[:, 4:6]) >= _EDGE).any(axis=1)
    return -distance, (distance < _ZONE_RADIUS) & ~off_table, off_table


def _norm(vector: np.ndarray) -> np.ndarray:
    return np.sqrt(vector[..., 0] * vector[..., 0] + vector[..., 1] * vector[..., 1])


class ToySimulator(World):
    """A batch of tables, each with a disc that a force moves, a puck and two zones, and gusts of keyed noise.

    Observation ``state`` [12] ([m], [m/s]) and, with ``cameras=("top",)``, ``image_top``. An episode terminates when
    the puck leaves the table. Signals: ``goal`` [2] [m], ``gust`` [2] [N], ``contact`` (the disc touches the puck).
    """

    name = "toy"
    tasks = TOY_TASKS
    control_dt = _SUBSTEPS * _DT
    success_hold = 2
    perturbation_axes = frozenset({"initial_state.puck", "dynamics.puck_mass"})

    def __init__(self, num_slots: int = 4, cameras: str | Sequence[str] = (), image_size: int = 16, gust: float = 0.5):
        self.num_slots = slot_count(num_slots)
        self.observation_space, self.action_space = toy_spaces(cameras, image_size)
        self.dynamics = f"toy/1 gust={gust!r}"
        self.fingerprint = f"{self.dynamics} cameras={','.join(names('cameras', cameras))} image_size={image_size}"
        self._image_size = image_size
        self._gust_scale = gust
        self._slots: dict[str, np.ndarray] = {
            "state": np.zeros((num_slots, 12)),
            "task": np.full(num_slots, -1),
            "gust": np.zeros((num_slots, 2)),
            "mass_scale": np.ones(num_slots),
            "mass_steps": np.zeros((num_slots, 2), dtype=np.int64),
        }

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
        for slot, start in zip(slots, starts, strict=True):
            self._slots["state"][slot] = toy_layout(start)
            self._slots["task"][slot] = self.tasks.index(start.task)
            self._slots["gust"][slot] = 0.0
            self._slots["mass_scale"][slot] = 1.0
            self._slots["mass_steps"][slot] = 0, _FOREVER
            for perturbation in start.perturbations:
                if perturbation.axis not in self.perturbation_axes:
                    raise UnsupportedError(f"world 'toy' has no perturbation axis {perturbation.axis!r}")
                if perturbation.axis == "dynamics.puck_mass":
                    end = _FOREVER if perturbation.to_step is None else perturbation.to_step
                    self._slots["mass_scale"][slot] = perturbation.level
                    self._slots["mass_steps"][slot] = perturbation.from_step, end
        return self._time_step(slots)

    def step(self, slots: Sequence[int], actions: Array, keys: Sequence[StepKey]) -> TimeStep:
        """See ``World.step``."""
        self.check_slots(slots)
        self._check_running(slots)
        self.check_actions(slots, actions, keys)
        rows = np.asarray(slots)
        gust = self._gust_scale * standard_normal(keys, (2,), "gust")
        step = np.array([key.step - 1 for key in keys])
        steps = self._slots["mass_steps"][rows]
        scaled = (steps[:, 0] <= step) & (step < steps[:, 1])
        mass = _PUCK_MASS * np.where(scaled, self._slots["mass_scale"][rows], 1.0)
        force = _MAX_FORCE * np.asarray(actions, dtype=np.float64) + gust
        self._slots["state"][rows] = _advance(self._slots["state"][rows], force, mass)
        self._slots["gust"][rows] = gust
        return self._time_step(slots)

    def snapshot(self, slots: Sequence[int]) -> list[Snapshot]:
        """See ``World.snapshot``."""
        self.check_slots(slots)
        self._check_running(slots)
        return [
            Snapshot(self.snapshot_fingerprint, {name: column[slot].copy() for name, column in self._slots.items()})
            for slot in slots
        ]

    def restore(self, slots: Sequence[int], snapshots: Sequence[Snapshot]) -> TimeStep:
        """See ``World.restore``."""
        self.check_slots(slots)
        self.check_snapshots(snapshots)
        for slot, snapshot in zip(slots, snapshots, strict=True):
            for name, column in self._slots.items():
                column[slot] = snapshot.state[name]
        return self._time_step(slots)

    def render(self, slots: Sequence[int]) -> np.ndarray:
        """See ``World.render``."""
        self._check_running(slots)
        return draw_toy(self._slots["state"][np.asarray(slots)], 96)

    def _check_running(self, slots: Sequence[int]) -> None:
        for slot in slots:
            if self._slots["task"][slot] < 0:
                raise RuntimeError(f"world 'toy': slot {slot} was never reset; call reset or restore first")

    def _time_step(self, slots: Sequence[int]) -> TimeStep:
        rows = np.asarray(slots)
        state, task = self._slots["state"][rows], self._slots["task"][rows]
        reward, success, terminated = judge_toy(state, task)
        signals = {
            "goal": state[:, 8:12].reshape(-1, 2, 2)[np.arange(len(rows)), task % 2],
            "gust": self._slots["gust"][rows],
            "contact": _norm(state[:, 4:6] - state[:, 0:2]) < TOY_REACH,
        }
        observation = {"state": state}
        if "image_top" in self.observation_space.spaces:
            observation["image_top"] = draw_toy(state, self._image_size)
        return TimeStep(observation, reward, terminated, np.zeros(len(rows), dtype=bool), success, signals)


def _advance(state: np.ndarray, force: np.ndarray, puck_mass: np.ndarray) -> np.ndarray:
    """One control step of the disc (1 kg) and the puck under semi-implicit Euler, with a penalty force at contact."""
    bodies = state[:, :8].reshape(-1, 2, 2, 2)  # disc and puck, position and velocity, x and y
    place, velocity = bodies[:, :, 0], bodies[:, :, 1]
    pushes = np.empty_like(place)
    for _ in range(_SUBSTEPS):
        between = place[:, 1] - place[:, 0]
        distance = np.maximum(_norm(between), 1e-9)
        depth = np.maximum(TOY_REACH - distance, 0.0)
        push = (_STIFFNESS * depth / distance)[:, None] * between
        pushes[:, 0] = force - push
        pushes[:, 1] = push / puck_mass[:, None]
        velocity = _limited(velocity + _DT * (pushes - _DAMPING * velocity), _MAX_SPEED)
        place = _limited(place + _DT * velocity, _EDGE)
    moved = np.stack([place, velocity], axis=2).reshape(-1, 8)
    return np.concatenate([moved, state[:, 8:12]], axis=1)


def _limited(values: np.ndarray, most: float) -> np.ndarray:
    return np.minimum(np.maximum(values, -most), most)
