"""One Gymnasium environment as a simulator: exact state where it is MuJoCo's, otherwise a replay of the actions."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import gymnasium
import mujoco
import numpy as np
from gymnasium.envs.mujoco import MujocoEnv

from envs.capture import Capture
from envs.rendering import RendererPool
from simeval.errors import ConfigError, UnsupportedError
from simeval.noise import Key, StepKey
from simeval.simulator import Simulator, SimulatorStep
from simeval.types import Start

SUCCESS_KEYS = ("is_success", "success")
"""Entries of ``info`` by which environments say that their goal holds."""
_PICTURE_SIZE = 256
_FOLLOWING_CAMERA = "track"
_NOT_STATE = ("gymnasium.spaces", "gymnasium.envs.registration", "gymnasium.envs.mujoco.mujoco_rendering")


class GymnasiumSimulator(Simulator):
    """An environment whose ``np_random`` draws from the step's key while it steps, so that it holds no generator.

    ``success``: whether ``info["is_success"]`` or ``info["success"]`` says that the goal holds.
    """

    def __init__(self, env: gymnasium.Env, success: bool):
        self.env = env
        self._reports = success
        self._draws = _KeyedDraws()

    def reset(self, start: Start, key: StepKey) -> SimulatorStep:
        """Begin the episode that ``env.reset(seed=start.seed)`` begins."""
        observation, info = self.env.reset(seed=start.seed)
        self.env.unwrapped.np_random = self._draws  # type: ignore[assignment]
        return self._present(observation, 0.0, False, False, info)

    def step(self, action: np.ndarray, key: StepKey) -> SimulatorStep:
        """Advance by one ``env.step``."""
        self._draws.begin(key)
        return self._present(*self.env.step(action.copy()))

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    @abstractmethod
    def signals(self) -> Mapping[str, np.ndarray]:
        """What is known of the environment's state."""

    def _present(
        self, observation: Any, reward: Any, terminated: Any, truncated: Any, info: Mapping[str, Any]
    ) -> SimulatorStep:
        named = observation if isinstance(self.env.observation_space, gymnasium.spaces.Dict) else {"state": observation}
        return SimulatorStep(
            {key: np.array(value) for key, value in named.items()},
            float(reward),
            bool(terminated),
            bool(truncated),
            self._reports and any(bool(info[key]) for key in SUCCESS_KEYS if key in info),
            self.signals(),
        )


class MujocoSimulator(GymnasiumSimulator):
    """A ``MujocoEnv``: a snapshot is its complete state."""

    def __init__(
        self,
        name: str,
        env: gymnasium.Env,
        success: bool,
        cameras: Sequence[str],
        size: int,
        renderers: RendererPool,
    ):
        super().__init__(env, success)
        assert isinstance(env.unwrapped, MujocoEnv)
        self._name = name
        self._model: mujoco.MjModel = env.unwrapped.model
        self._data: mujoco.MjData = env.unwrapped.data
        self._cameras = cameras
        self._size = size
        self._renderers = renderers
        # Capture finds contacts again from the poses, which a fresh MjData does not have yet.
        mujoco.mj_forward(self._model, self._data)
        modules = {type(layer).__module__.partition(".")[0] for layer in _layers(env)} | {"gymnasium"}
        self._capture = Capture(self._model, self._data, {"env": env}, sorted(modules), _NOT_STATE)
        self._pristine = self._capture.save()
        self._shown: SimulatorStep

    def reset(self, start: Start, key: StepKey) -> SimulatorStep:
        """Begin an episode from the environment as it was built."""
        self._capture.load(self._pristine)
        return super().reset(start, key)

    def snapshot(self) -> Mapping[str, Any]:
        """The complete state, and what was shown of it; pictures are drawn again."""
        shown = self._shown
        return {
            "capture": self._capture.save(),
            "observation": {key: value.copy() for key, value in shown.observation.items()},
            "reward": shown.reward,
            "flags": (shown.terminated, shown.truncated, shown.success),
        }

    def restore(self, state: Mapping[str, Any]) -> SimulatorStep:
        """Put a state back; nothing is simulated."""
        self._capture.load(state["capture"])
        self.env.unwrapped.np_random = self._draws  # type: ignore[assignment]
        observation = {key: value.copy() for key, value in state["observation"].items()}
        terminated, truncated, success = state["flags"]
        return self._show(SimulatorStep(observation, state["reward"], terminated, truncated, success, self.signals()))

    def render(self) -> np.ndarray:
        """A picture by the model's camera ``track`` if it has one, else from a free camera."""
        names = [self._model.camera(index).name for index in range(self._model.ncam)]
        camera: str | mujoco.MjvCamera = _FOLLOWING_CAMERA
        if _FOLLOWING_CAMERA not in names:
            camera = mujoco.MjvCamera()
            mujoco.mjv_defaultFreeCamera(self._model, camera)
        return self._renderers.render(self._name, self._model, self._data, camera, _PICTURE_SIZE)

    def signals(self) -> Mapping[str, np.ndarray]:
        """``qpos`` [nq] and ``qvel`` [nv]."""
        return {"qpos": self._data.qpos, "qvel": self._data.qvel}

    def _present(
        self, observation: Any, reward: Any, terminated: Any, truncated: Any, info: Mapping[str, Any]
    ) -> SimulatorStep:
        return self._show(super()._present(observation, reward, terminated, truncated, info))

    def _show(self, step: SimulatorStep) -> SimulatorStep:
        self._shown = step
        if not self._cameras:
            return step
        images = {
            f"image_{camera}": self._renderers.render(self._name, self._model, self._data, camera, self._size)
            for camera in self._cameras
        }
        return replace(step, observation={**step.observation, **images})


class ReplayedSimulator(GymnasiumSimulator):
    """Any other environment: a snapshot is its start, actions and step keys, and restoring runs them again."""

    def __init__(self, env: gymnasium.Env, success: bool):
        super().__init__(env, success)
        self._start: Start
        self._actions: list[np.ndarray] = []
        self._keys: list[tuple[int, str]] = []

    def reset(self, start: Start, key: StepKey) -> SimulatorStep:
        """Begin an episode."""
        self._start, self._actions, self._keys = start, [], []
        return super().reset(start, key)

    def step(self, action: np.ndarray, key: StepKey) -> SimulatorStep:
        """Advance, and remember how."""
        result = super().step(action, key)
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

    def signals(self) -> Mapping[str, np.ndarray]:
        """Nothing is known."""
        return {}


class _KeyedDraws:
    """Stands for ``np_random``: the generator of the step under way, made when the first draw asks for it."""

    def __init__(self) -> None:
        self._key: StepKey | None = None
        self._generator: np.random.Generator | None = None

    def begin(self, key: StepKey) -> None:
        self._key, self._generator = key, None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self._key is None:
            raise ConfigError("the environment draws from np_random between its reset and its first step")
        if self._generator is None:
            self._generator = self._key.generator("np_random")
        return getattr(self._generator, name)


def _layers(env: gymnasium.Env) -> list[gymnasium.Env]:
    layers = [env]
    while isinstance(layers[-1], gymnasium.Wrapper):
        layers.append(layers[-1].env)
    return layers
