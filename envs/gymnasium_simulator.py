"""One Gymnasium environment as a simulator: exact state where it is MuJoCo's, otherwise a replay of the actions."""

from collections.abc import Mapping
from typing import Any

import gymnasium
import mujoco
import numpy as np
from gymnasium.spaces import Box

from envs.captured import CapturedSimulator, Views, camera_names
from simeval.errors import ConfigError, UnsupportedError
from simeval.noise import Key, StepKey
from simeval.simulator import Simulator, SimulatorStep
from simeval.types import Start

SUCCESS_KEYS = ("is_success", "success")
"""Entries of ``info`` by which environments say that their goal holds."""
_FOLLOWING_CAMERA = "track"
_NOT_STATE = ("gymnasium.spaces", "gymnasium.envs.registration", "gymnasium.envs.mujoco.mujoco_rendering")


def engine_of(env: gymnasium.Env) -> tuple[mujoco.MjModel, mujoco.MjData] | None:
    """The MuJoCo model and data that an environment shows as ``model`` and ``data``; ``None`` where it shows none."""
    bare: Any = env.unwrapped
    model, data = getattr(bare, "model", None), getattr(bare, "data", None)
    return (model, data) if isinstance(model, mujoco.MjModel) and isinstance(data, mujoco.MjData) else None


def environments(env: gymnasium.Env) -> list[gymnasium.Env]:
    """An environment, and those that it wraps or holds as an attribute, its own first."""
    found = [env]
    for layer in found:
        found += [value for value in vars(layer).values() if isinstance(value, gymnasium.Env) and value not in found]
    return found


def observation_boxes(space: gymnasium.Space) -> dict[str, tuple[str, Box]]:
    """An environment's key (``""`` for a lone ``Box``) -> the World's key, and the space.

    A lone box is ``state``, a picture ``image_<key>``. ``UnsupportedError`` for what is no box.
    """
    named: Mapping[str, gymnasium.Space] = space.spaces if isinstance(space, gymnasium.spaces.Dict) else {"": space}
    boxes = {}
    for key, box in named.items():
        if not isinstance(box, Box):
            raise UnsupportedError(f"a World's observations are a Box or a Dict of boxes; received {space}")
        picture = box.dtype == np.uint8 and len(box.shape) == 3 and box.shape[-1] == 3
        boxes[key] = (f"image_{key or 'pixels'}" if picture else key or "state"), box
    return boxes


class KeyedEnv:
    """An environment whose ``np_random`` draws from the step's key while it steps, so that it holds no generator.

    So do the environments that it wraps or holds. ``success``: whether ``info["is_success"]`` or ``info["success"]``
    says that the goal holds.
    """

    def __init__(self, env: gymnasium.Env, success: bool):
        self.env = env
        self._bare = [layer for layer in environments(env) if not isinstance(layer, gymnasium.Wrapper)]
        self._names = {key: name for key, (name, _) in observation_boxes(env.observation_space).items()}
        self._nested = isinstance(env.observation_space, gymnasium.spaces.Dict)
        self._reports = success
        self._draws = _KeyedDraws()

    def reset(self, seed: int | None, options: dict[str, Any] | None = None) -> SimulatorStep:
        """``env.reset``, without signals."""
        observation, info = self.env.reset(seed=seed, options=options)
        self.resume()
        return self._step(observation, 0.0, False, False, info)

    def step(self, action: np.ndarray, key: StepKey) -> SimulatorStep:
        """``env.step``, without signals."""
        self._draws.begin(key)
        return self._step(*self.env.step(action.copy()))

    def resume(self) -> None:
        """Make draws keyed, from now on."""
        self._draws.begin(None)
        for env in self._bare:
            env.np_random = self._draws  # type: ignore[assignment]

    def _step(
        self, observation: Any, reward: Any, terminated: Any, truncated: Any, info: Mapping[str, Any]
    ) -> SimulatorStep:
        named = observation if self._nested else {"": observation}
        return SimulatorStep(
            {self._names[key]: np.array(value) for key, value in named.items()},
            float(reward),
            bool(terminated),
            bool(truncated),
            self._reports and any(bool(info[key]) for key in SUCCESS_KEYS if key in info),
        )


class MujocoSimulator(CapturedSimulator):
    """An environment around MuJoCo: a snapshot is its complete state."""

    def __init__(self, name: str, env: gymnasium.Env, success: bool, views: Views):
        engine = engine_of(env)
        assert engine is not None
        self.env = env
        self._keyed = KeyedEnv(env, success)
        modules = {type(layer).__module__.partition(".")[0] for layer in environments(env)} | {"gymnasium"}
        super().__init__(name, *engine, {"env": env}, sorted(modules), _NOT_STATE, views)
        # Gymnasium-Robotics moves the marker of the goal when it draws, and the simulation with it.
        self._prepare_picture = getattr(env.unwrapped, "_render_callback", None)

    def reset(self, start: Start, key: StepKey) -> SimulatorStep:
        """Begin, from the environment as it was built, the episode that ``env.reset(seed=start.seed)`` begins."""
        self.rewind()
        return self.present(self._keyed.reset(start.seed, self.options(start)))

    def step(self, action: np.ndarray, key: StepKey) -> SimulatorStep:
        """Advance by one ``env.step``."""
        return self.present(self._keyed.step(action, key))

    def options(self, start: Start) -> dict[str, Any] | None:
        """The ``options`` of ``env.reset`` for a start."""
        return None

    def present(self, step: SimulatorStep) -> SimulatorStep:
        """A step of the environment as it is returned."""
        return self.show(
            SimulatorStep(step.observation, step.reward, step.terminated, step.truncated, step.success, self.signals())
        )

    def resume(self) -> None:
        """See ``CapturedSimulator.resume``."""
        self._keyed.resume()

    def picture_camera(self) -> str | mujoco.MjvCamera:
        """The model's camera ``track`` if it has one, else a free camera."""
        return _FOLLOWING_CAMERA if _FOLLOWING_CAMERA in camera_names(self.model) else super().picture_camera()

    def draw(self, camera: str | mujoco.MjvCamera, size: int) -> np.ndarray:
        """See ``CapturedSimulator.draw``."""
        if self._prepare_picture is None:
            return super().draw(camera, size)
        before = self.capture.physics.save()
        self._prepare_picture()
        picture = super().draw(camera, size)
        self.capture.physics.load(before)
        return picture

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


class ReplayedSimulator(Simulator):
    """Any other environment: a snapshot is its start, actions and step keys, and restoring runs them again."""

    def __init__(self, env: gymnasium.Env, success: bool):
        self.env = env
        self._keyed = KeyedEnv(env, success)
        self._start: Start
        self._actions: list[np.ndarray] = []
        self._keys: list[tuple[int, str]] = []

    def reset(self, start: Start, key: StepKey) -> SimulatorStep:
        """Begin the episode that ``env.reset(seed=start.seed)`` begins."""
        self._start, self._actions, self._keys = start, [], []
        return self._keyed.reset(start.seed)

    def step(self, action: np.ndarray, key: StepKey) -> SimulatorStep:
        """Advance by one ``env.step``, and remember how."""
        result = self._keyed.step(action, key)
        self._actions.append(action.copy())
        self._keys.append((key.stream.seed, key.stream.name))
        return result

    def snapshot(self) -> Mapping[str, Any]:
        """How the episode came to where it is."""
        return {"start": self._start.to_json(), "actions": [a.copy() for a in self._actions], "keys": list(self._keys)}

    def restore(self, state: Mapping[str, Any]) -> SimulatorStep:
        """Run the episode again up to where it was; costs as much as that did."""
        start = Start.from_json(state["start"])
        result = self.reset(start, Key(0).stream("world").key(0))
        for step, (action, (seed, name)) in enumerate(zip(state["actions"], state["keys"], strict=True)):
            result = self.step(action, Key(seed).stream(name).key(step + 1))
        return result

    def render(self) -> np.ndarray:
        """The environment's own ``rgb_array`` picture."""
        if self.env.render_mode != "rgb_array":
            raise UnsupportedError(f"environment {self.env.spec} draws no pictures: it has no 'rgb_array' mode")
        try:
            picture = self.env.render()
        except gymnasium.error.DependencyNotInstalled as error:
            raise UnsupportedError(
                f"this environment draws its pictures with a package that is missing: {error}"
            ) from error
        return np.array(picture, dtype=np.uint8)

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


class _KeyedDraws:
    """Stands for ``np_random``: the generator of the step under way, made when the first draw asks for it."""

    def __init__(self) -> None:
        self._key: StepKey | None = None
        self._generator: np.random.Generator | None = None

    def begin(self, key: StepKey | None) -> None:
        self._key, self._generator = key, None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self._key is None:
            raise ConfigError("the environment draws from np_random between its reset and its first step")
        if self._generator is None:
            self._generator = self._key.generator("np_random")
        return getattr(self._generator, name)
