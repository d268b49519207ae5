"""The scripted agents that ship with OGBench, told what to do next by the state and the goal alone."""

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

from simeval.errors import ConfigError, MissingPackageError
from simeval.noise import StepKey
from simeval.policy import Memory, Policy, PolicyStep
from simeval.types import Observation, WorldSpec

ARM, CUBE, SCENE = 19, 9, 12
"""Numbers in ``state`` of arm and gripper, of each cube, and of the scene's two buttons, drawer and window."""

_CENTRE = np.array([0.425, 0.0, 0.0])
_ABOVE = 0.16
_DONE = 0.03
_TABLE = 0.02
_LEVEL = 0.04
_RISE = np.array([0.0, 0.0, 1.0, 0.0, -1.0])
_AIR = np.array([0.425, 0.0, 0.3])
_BUTTONS = np.array([[0.58, -0.05, 0.125], [0.58, 0.05, 0.121]])
_OPEN_DRAWER = -0.16
_IN_OPEN_DRAWER = np.array([0.33, -0.2, 0.066])
_PARKING = np.array([[x, y, _TABLE] for y in (0.0, 0.1, -0.1, 0.2, -0.2, 0.27, -0.27) for x in (0.42, 0.34, 0.5, 0.55)])


class OGBenchExpert(Policy):
    """The package's Markov oracles for cubes, buttons, drawer and window; it remembers nothing.

    It reads ``state`` and ``goal`` of ``cube-*`` and ``scene`` worlds, chooses what to do next (what is held is put
    down first; stacks grow from below; what is locked is unlocked first), and lets the oracle for that act. Actions
    [n, 5] float32 in -1..1.
    """

    observation_keys = ("state", "goal")

    def __init__(self) -> None:
        self._oracles = _oracles()

    @property
    def fingerprint(self) -> str:
        """See ``Policy.fingerprint``."""
        return f"OGBenchExpert/1, ogbench {version('ogbench')}"

    def bind(self, spec: WorldSpec) -> "OGBenchExpert":
        """See ``Policy.bind``."""
        super().bind(spec)
        for task in spec.tasks:
            if not task.startswith(("cube-", "scene-")):
                raise ConfigError(f"OGBenchExpert knows the tasks of cube-* and scene; the world has {task!r}")
        return self

    def act(
        self, observation: Observation, instruction: Sequence[str], memory: Memory, keys: Sequence[StepKey]
    ) -> PolicyStep:
        """See ``Policy.act``."""
        rows = zip(observation["state"], observation["goal"], strict=True)
        actions = [self._action(_Scene(state), _Scene(goal)) for state, goal in rows]
        return PolicyStep(np.array(actions, dtype=np.float32).reshape(-1, 5).clip(-1.0, 1.0), memory)

    def _action(self, now: "_Scene", goal: "_Scene") -> np.ndarray:
        which, wanted = _next(now, goal)
        if now.held() is None and now.is_low_at_another_handle(which):
            return _RISE
        return self._oracles[which].select_action(None, now.info | wanted)


class _Scene:
    """What a ``state`` vector says, in metres and radians."""

    def __init__(self, state: np.ndarray):
        furnished = (len(state) - ARM) % CUBE != 0
        cubes = state[ARM : len(state) - (SCENE if furnished else 0)].reshape(-1, CUBE)
        self.hand = state[12:15] / 10 + _CENTRE
        self.contact = state[18]
        self.cubes = cubes[:, :3] / 10 + _CENTRE
        self.yaws = np.arctan2(cubes[:, 8], cubes[:, 7])
        self.buttons: np.ndarray = np.zeros(0, int)
        self.drawer = self.window = 0.0
        if furnished:
            scene = state[-SCENE:]
            self.buttons = scene[[1, 5]].round().astype(int)
            self.drawer, self.window = scene[8] / 18, scene[10] / 15
        self.info: dict[str, Any] = {
            "proprio/effector_pos": self.hand,
            "proprio/effector_yaw": np.array([np.arctan2(state[16], state[15])]),
            "proprio/gripper_opening": state[17:18] / 3,
            "proprio/gripper_contact": self.contact,
            "privileged/drawer_handle_pos": _drawer_handle(self.drawer),
            "privileged/drawer_handle_yaw": np.array([np.pi]),
            "privileged/window_handle_pos": _window_handle(self.window),
            "privileged/window_handle_yaw": np.array([np.pi / 2]),
            **{f"privileged/button_{i}_state": state for i, state in enumerate(self.buttons)},
        }
        for i, (place, yaw) in enumerate(zip(self.cubes, self.yaws, strict=True)):
            self.info |= {f"privileged/block_{i}_pos": place, f"privileged/block_{i}_yaw": np.array([yaw])}

    def held(self) -> int | None:
        """The cube between the fingers."""
        near = np.linalg.norm(self.cubes - self.hand, axis=1)
        return int(near.argmin()) if self.contact > 0.3 and near.min() < 0.03 else None

    def is_low_at_another_handle(self, which: str) -> bool:
        """Whether the hand must rise before it goes to work at ``which``, lest it drags drawer or window along."""
        handles = {"drawer": _drawer_handle(self.drawer), "window": _window_handle(self.window)}
        return len(self.buttons) > 0 and any(
            np.linalg.norm((handle - self.hand)[:2]) < 0.06 and self.hand[2] < handle[2] + 0.06
            for name, handle in handles.items()
            if name != which
        )

    def is_stowed(self) -> bool:
        """Whether the cube lies in the drawer."""
        inside = self.cubes[0] - _drawer_handle(self.drawer)
        return self.held() is None and -0.26 < inside[1] < -0.06 and abs(inside[0]) < 0.12 and self.cubes[0, 2] < 0.12

    def free(self, place: np.ndarray, cube: int) -> bool:
        """Whether ``cube`` could be put down at ``place``: no other cube is there, and none on top of it."""
        others = np.delete(self.cubes, cube, axis=0)
        beside = np.linalg.norm(others[:, :2] - place[:2], axis=1) < _LEVEL
        return not np.any(beside & (others[:, 2] > place[2] - _LEVEL / 2))


def _next(now: _Scene, goal: _Scene) -> tuple[str, dict[str, Any]]:
    """Which oracle acts, and what it is to achieve."""
    into_drawer = len(goal.buttons) > 0 and goal.cubes[0, 1] < -0.3
    stowing = into_drawer and not now.is_stowed()
    places = (("drawer", now.drawer, _OPEN_DRAWER if stowing else goal.drawer), ("window", now.window, goal.window))
    for index, (which, is_at, wanted) in enumerate(places):
        if len(now.buttons) and now.held() is None and abs(is_at - wanted) > 0.015:
            if not now.buttons[index]:  # locked
                return _press(index, 1)
            handle = (_drawer_handle if which == "drawer" else _window_handle)(wanted)
            return which, {f"privileged/target_{which}_handle_pos": handle}
    targets = goal.cubes.copy()
    if into_drawer:
        targets[0] = _IN_OPEN_DRAWER if stowing else now.cubes[0]
    chosen = _cube(now, targets)
    if chosen is not None:
        return chosen
    for index in np.flatnonzero(now.buttons != goal.buttons):
        return _press(int(index), int(goal.buttons[index]))
    return _carry(0, now.cubes[0])


def _cube(now: _Scene, targets: np.ndarray) -> tuple[str, dict[str, Any]] | None:
    held = now.held()
    wrong = [i for i in range(len(targets)) if np.linalg.norm(now.cubes[i] - targets[i]) > _DONE]
    near = int(np.linalg.norm(now.cubes - now.hand, axis=1).argmin())
    if held is None:
        ready = [i for i in wrong if now.free(now.cubes[i] + [0, 0, _LEVEL], i)]
        placeable = [i for i in ready if _settled(now, targets, i)]
        cube = min(placeable or ready, key=lambda i: (targets[i, 2], i), default=None)
        low = now.hand[2] < _ABOVE - 0.04 and np.linalg.norm(now.cubes[near] - now.hand) < 0.08
        if low and cube != near:
            return _carry(near, now.cubes[near])  # lets go of it and rises
        if cube is None:
            return None
    else:
        cube = held
    if _settled(now, targets, cube):
        return _carry(cube, targets[cube])
    taken = np.concatenate([np.delete(now.cubes, cube, axis=0), targets])
    spots = [spot for spot in _PARKING if np.linalg.norm(taken[:, :2] - spot[:2], axis=1).min() > 2 * _LEVEL]
    return _carry(cube, spots[0] if spots else _AIR)


def _settled(now: _Scene, targets: np.ndarray, cube: int) -> bool:
    """Whether a cube can go to its target now: nothing is in the way, and what it stands on is in place."""
    below = np.linalg.norm(targets[:, :2] - targets[cube, :2], axis=1) < _LEVEL
    below &= targets[:, 2] < targets[cube, 2] - _LEVEL / 2
    ready = np.linalg.norm(now.cubes - targets, axis=1) <= _DONE
    return bool(ready[below].all()) and now.free(targets[cube], cube)


def _carry(cube: int, place: np.ndarray) -> tuple[str, dict[str, Any]]:
    yaw = np.zeros(1)
    return "cube", {
        "privileged/target_block": cube,
        "privileged/target_block_pos": place,
        "privileged/target_block_yaw": yaw,
    }


def _press(button: int, state: int) -> tuple[str, dict[str, Any]]:
    return "button", {
        "privileged/target_button": button,
        "privileged/target_button_state": state,
        "privileged/target_button_top_pos": _BUTTONS[button],
    }


def _drawer_handle(drawer: float) -> np.ndarray:
    return np.array([0.33, -0.24 - drawer, 0.08])


def _window_handle(window: float) -> np.ndarray:
    return np.array([0.286 + window, 0.225, 0.237])


def _oracles() -> Mapping[str, Any]:
    try:
        from ogbench.manipspace.oracles.markov import button_markov, cube_markov, drawer_markov, window_markov
    except ModuleNotFoundError as error:
        if error.name != "ogbench":
            raise
        raise MissingPackageError("OGBench", "simeval[ogbench]") from error
    oracles = {
        "cube": cube_markov.CubeMarkovOracle(env=None),
        "button": button_markov.ButtonMarkovOracle(env=None, gripper_always_closed=True),
        "drawer": drawer_markov.DrawerMarkovOracle(env=None),
        "window": window_markov.WindowMarkovOracle(env=None),
    }
    for oracle in oracles.values():
        # What the oracles draw at a reset: where the hand rests afterwards.
        oracle._step, oracle._final_pos, oracle._final_yaw = 0, _AIR, 0.0
    return oracles
