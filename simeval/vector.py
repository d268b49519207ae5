"""Worlds seen from outside: as a ``gymnasium.vector.VectorEnv``, or one slot as a ``gymnasium.Env``.

Start and noise of every episode are a function of (seed, slot, index of the episode in its slot), so that learners
written for Gymnasium meet distinct episodes in every slot, and the same ones when they run again.
"""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from simeval.errors import ActionError, ConfigError
from simeval.noise import Key
from simeval.types import Start, TimeStep
from simeval.world import World

Info = dict[str, Any]


def as_vector_env(
    world: World,
    tasks: Sequence[str] | None = None,
    seed: int = 0,
    horizon: int | None = None,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    render_mode: str | None = None,
) -> "WorldVectorEnv":
    """``world`` as a Gymnasium vector environment of ``num_slots`` environments; closing it closes the World.

    Each slot goes through ``tasks`` (default: all) in turn. An episode is truncated after ``horizon`` steps (default:
    the task's own). ``reset(seed=…)`` begins all series of episodes anew under that seed, or a list of seeds, one per
    slot. ``info`` has ``success``, ``task`` and ``instruction``. A simulator that breaks raises ``RuntimeError`` with
    its traceback.
    """
    return WorldVectorEnv(world, tasks, seed, horizon, AutoresetMode(autoreset_mode), render_mode)


def as_env(
    world: World,
    tasks: Sequence[str] | None = None,
    seed: int = 0,
    horizon: int | None = None,
    render_mode: str | None = None,
) -> "WorldEnv":
    """Slot 0 of ``world`` as a plain Gymnasium environment; arguments as for :func:`as_vector_env`."""
    return WorldEnv(world, tasks, seed, horizon, render_mode)


class _Series:
    """The episodes of one slot, one after the other: the start, the noise and the age of the one that runs."""

    def __init__(self, world: World, slot: int, tasks: Sequence[str], horizon: int | None):
        self._world, self._slot, self._tasks, self._horizon = world, slot, tasks, horizon
        self._key, self._index = Key(0), 0
        self.task = ""
        self.instruction = ""
        self.step = 0
        self.stream = Key(0).stream("world")

    def begin(self, key: Key) -> None:
        """Begin the series anew under a key."""
        self._key, self._index = key, 0

    def next_episode(self) -> Start:
        """Move on to the next episode, and return its start."""
        index, self._index = self._index, self._index + 1
        self.task = self._tasks[(self._slot + index) % len(self._tasks)]
        self.step = 0
        self.stream = Key(self._key.integer("noise", index)).stream("world")
        start = self._world.start(self.task, self._key.integer("start", index) >> 32)
        self.instruction = start.instruction
        return start

    @property
    def capped(self) -> bool:
        """Whether the episode has reached its horizon."""
        return self.step >= (self._world.horizon(self.task) if self._horizon is None else self._horizon)


class _Episodes:
    """Runs the series of all slots: what both kinds of environment share."""

    def __init__(self, world: World, count: int, tasks: Sequence[str] | None, seed: int, horizon: int | None):
        chosen = world.tasks if tasks is None else tuple(tasks)
        if not chosen:
            raise ConfigError(f"no task was given; world {world.name!r} has: {', '.join(world.tasks)}")
        for task in chosen:
            world.check_task(task)
        if horizon is not None and horizon < 1:
            raise ConfigError(f"an episode needs at least one step; received horizon={horizon}")
        self.world = world
        self.series = [_Series(world, slot, chosen, horizon) for slot in range(count)]
        self.seed(seed)

    def seed(self, seed: int | Sequence[int]) -> None:
        """Begin all series anew: under one seed, told apart by slot, or under one seed for each."""
        if isinstance(seed, int | np.integer):
            keys = [Key(int(seed)).integer("slot", slot) for slot in range(len(self.series))]
        else:
            keys = [Key(int(own)).integer("slot", 0) for own in seed]
        if len(keys) != len(self.series):
            raise ConfigError(f"received {len(keys)} seeds for {len(self.series)} slots; pass one, or one per slot")
        for series, key in zip(self.series, keys, strict=True):
            series.begin(Key(key))

    def reset(self, slots: Sequence[int]) -> TimeStep:
        """Begin the next episode in each slot."""
        starts = [self.series[slot].next_episode() for slot in slots]
        result = self.world.reset(slots, starts, [self.series[slot].stream.key(0) for slot in slots])
        self._whole(slots, result)
        return result

    def step(self, slots: Sequence[int], actions: np.ndarray) -> tuple[TimeStep, np.ndarray]:
        """Step each slot; also which are truncated [n], by the World or at the horizon."""
        keys = [self.series[slot].stream.key(self.series[slot].step + 1) for slot in slots]
        result = self.world.step(slots, actions, keys)
        for slot in slots:  # not before: actions that the World refuses have moved nothing
            self.series[slot].step += 1
        self._whole(slots, result)
        return result, np.asarray(result.truncated) | [self.series[slot].capped for slot in slots]

    def _whole(self, slots: Sequence[int], result: TimeStep) -> None:
        for row, text in result.failures.items():
            raise RuntimeError(f"world {self.world.name!r}: the simulator in slot {slots[row]} broke\n{text}")


class WorldVectorEnv(VectorEnv):
    """A World as a vector environment; made by :func:`as_vector_env`."""

    def __init__(
        self,
        world: World,
        tasks: Sequence[str] | None,
        seed: int,
        horizon: int | None,
        autoreset_mode: AutoresetMode,
        render_mode: str | None,
    ):
        self.world = world
        self.num_envs = world.num_slots
        self.single_observation_space = world.observation_space
        self.single_action_space = world.action_space
        self.observation_space = batch_space(world.observation_space, world.num_slots)
        self.action_space = batch_space(world.action_space, world.num_slots)
        self.metadata = {"autoreset_mode": autoreset_mode, **_metadata(world)}
        self.render_mode = render_mode
        self._mode = autoreset_mode
        self._episodes = _Episodes(world, world.num_slots, tasks, seed, horizon)
        self._over = np.ones(world.num_slots, dtype=bool)
        self._observation: dict[str, np.ndarray] = {}

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], Info]:
        """Begin an episode in every slot, or in those that ``options["reset_mask"]`` [num_envs] selects."""
        mask = np.ones(self.num_envs, dtype=bool) if options is None else options.get("reset_mask")
        if mask is None:
            mask = np.ones(self.num_envs, dtype=bool)
        if mask.shape != (self.num_envs,) or mask.dtype != bool or not (mask.any() and (mask | ~self._over).all()):
            raise ValueError(f"reset_mask must be {self.num_envs} booleans, true where an episode is over; got {mask}")
        super().reset(seed=int(seed) if isinstance(seed, int | np.integer) else None)
        if seed is not None:
            self._episodes.seed(seed)
        self._over = self._over & ~mask
        slots = np.flatnonzero(mask).tolist()
        result = self._episodes.reset(slots)
        self._put(slots, result)
        return self._copy(), self._info(slots, result)

    def step(self, actions: Any) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray, np.ndarray, Info]:
        """Step every slot; slots whose episode is over are reset as the autoreset mode says.

        Actions ``[num_envs, A]`` that do not fit raise ``ActionError``, and have moved nothing.
        """
        actions = np.asarray(actions)
        if actions.shape != self.action_space.shape:
            raise ActionError(f"actions have shape {actions.shape}, expected {self.action_space.shape}")
        reward = np.zeros(self.num_envs)
        terminated, truncated = np.zeros((2, self.num_envs), dtype=bool)
        waiting = np.flatnonzero(self._over).tolist()
        if waiting and (self._mode != AutoresetMode.NEXT_STEP or not self._observation):
            raise gymnasium.error.ResetNeeded(f"the episodes in slots {waiting} are over; call reset() first")
        running = np.flatnonzero(~self._over).tolist()
        info: Info = {}
        if running:
            result, capped = self._episodes.step(running, actions[running])
            reward[running], terminated[running], truncated[running] = result.reward, result.terminated, capped
            self._put(running, result)
            info = self._info(running, result)
        if waiting:
            result = self._episodes.reset(waiting)
            self._put(waiting, result)
            info = self._info(waiting, result, info)
        self._over = terminated | truncated
        if self._mode == AutoresetMode.SAME_STEP and self._over.any():
            info = self._begin_anew(np.flatnonzero(self._over).tolist(), info)
        return self._copy(), reward, terminated, truncated, info

    def render(self) -> tuple[np.ndarray, ...] | None:
        """A picture of every slot, uint8 ``[H, W, 3]``, in ``render_mode="rgb_array"``."""
        if self.render_mode is None:
            return None
        return tuple(self.world.render(range(self.num_envs)))

    def close_extras(self, **kwargs: Any) -> None:
        """Close the World."""
        self.world.close()

    def _begin_anew(self, slots: list[int], info: Info) -> Info:
        final = np.full(self.num_envs, None, dtype=object)
        for slot in slots:
            final[slot] = {key: value[slot].copy() for key, value in self._observation.items()}
        mask = np.zeros(self.num_envs, dtype=bool)
        mask[slots] = True
        ended = {key: value if key.startswith("_") else value.copy() for key, value in info.items()}
        ended.update({key: value & mask for key, value in info.items() if key.startswith("_")})
        result = self._episodes.reset(slots)
        self._put(slots, result)
        self._over[:] = False
        info = self._info(slots, result, info)
        return {**info, "final_obs": final, "_final_obs": mask, "final_info": ended, "_final_info": mask.copy()}

    def _put(self, slots: list[int], result: TimeStep) -> None:
        for key, value in result.observation.items():
            value = np.asarray(value)
            if key not in self._observation:
                self._observation[key] = np.zeros((self.num_envs, *value.shape[1:]), dtype=value.dtype)
            self._observation[key][slots] = value

    def _copy(self) -> dict[str, np.ndarray]:
        return {key: value.copy() for key, value in self._observation.items()}

    def _info(self, slots: list[int], result: TimeStep, info: Info | None = None) -> Info:
        if not info:
            texts = {key: np.full(self.num_envs, "", dtype=object) for key in ("task", "instruction")}
            info = {"success": np.zeros(self.num_envs, dtype=bool), **texts}
            info |= {f"_{key}": np.zeros(self.num_envs, dtype=bool) for key in info}
        info["success"][slots] = result.success
        for slot in slots:
            info["task"][slot] = self._episodes.series[slot].task
            info["instruction"][slot] = self._episodes.series[slot].instruction
        info["_success"][slots] = info["_task"][slots] = info["_instruction"][slots] = True
        return info


class WorldEnv(gymnasium.Env):
    """One slot of a World as a plain environment; made by :func:`as_env`."""

    def __init__(
        self, world: World, tasks: Sequence[str] | None, seed: int, horizon: int | None, render_mode: str | None
    ):
        self.world = world
        self.observation_space = world.observation_space
        self.action_space = world.action_space
        self.metadata = _metadata(world)
        self.render_mode = render_mode
        self._episodes = _Episodes(world, 1, tasks, seed, horizon)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], Info]:
        """Begin the next episode, or with ``seed`` the first of that seed."""
        super().reset(seed=seed)
        if seed is not None:
            self._episodes.seed(seed)
        result = self._episodes.reset([0])
        return self._row(result), self._info(result)

    def step(self, action: Any) -> tuple[dict[str, np.ndarray], float, bool, bool, Info]:
        """Advance by one control step."""
        result, truncated = self._episodes.step([0], np.asarray(action)[None])
        over = bool(result.terminated[0]), bool(truncated[0])
        return self._row(result), float(result.reward[0]), *over, self._info(result)

    def render(self) -> np.ndarray | None:
        """A picture, uint8 ``[H, W, 3]``, in ``render_mode="rgb_array"``."""
        return None if self.render_mode is None else self.world.render([0])[0]

    def close(self) -> None:
        """Close the World."""
        self.world.close()

    def _row(self, result: TimeStep) -> dict[str, np.ndarray]:
        return {key: np.array(value[0]) for key, value in result.observation.items()}

    def _info(self, result: TimeStep) -> Info:
        series = self._episodes.series[0]
        return {"success": bool(result.success[0]), "task": series.task, "instruction": series.instruction}


def _metadata(world: World) -> dict[str, Any]:
    return {"render_modes": ["rgb_array"], "render_fps": round(1 / world.control_dt)}
