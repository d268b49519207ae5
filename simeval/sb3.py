"""A World as a stable-baselines3 ``VecEnv``, stepped as one batch; needs ``pip install 'simeval[rl]'``."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from simeval.errors import MissingPackageError
from simeval.vector import as_vector_env
from simeval.world import World

try:
    from stable_baselines3.common.vec_env import VecEnv
except ModuleNotFoundError:
    raise MissingPackageError("stable-baselines3", "'simeval[rl]'") from None


class WorldVecEnv(VecEnv):
    """``world`` as a ``VecEnv``; arguments as for ``simeval.as_vector_env``. Use ``MultiInputPolicy`` with it.

    Finished slots are reset at once; ``infos[i]`` then has ``terminal_observation``, ``TimeLimit.truncated`` and, as
    always, ``success`` and ``task`` of the step that ended the episode.
    """

    def __init__(self, world: World, tasks: Sequence[str] | None = None, seed: int = 0, horizon: int | None = None):
        self._env = as_vector_env(world, tasks, seed, horizon, AutoresetMode.SAME_STEP, "rgb_array")
        self._actions = np.zeros(0)
        self.render_mode = "rgb_array"
        super().__init__(world.num_slots, world.observation_space, world.action_space)

    def reset(self) -> Any:
        """Begin an episode in every slot; with the seeds that ``seed()`` gave, if any."""
        seeds = [seed for seed in self._seeds if seed is not None]
        observation, _ = self._env.reset(seed=seeds or None)
        self._reset_seeds()
        self._reset_options()
        return observation

    def step_async(self, actions: np.ndarray) -> None:
        """Keep the actions for ``step_wait``."""
        self._actions = actions

    def step_wait(self) -> Any:
        """Step every slot."""
        observation, reward, terminated, truncated, info = self._env.step(self._actions)
        over = terminated | truncated
        infos: list[dict[str, Any]] = []
        for slot in range(self.num_envs):
            source = info["final_info"] if over[slot] else info
            own = {key: source[key][slot] for key in ("task", "instruction")}
            infos.append({"success": bool(source["success"][slot]), **own})
            if over[slot]:
                infos[-1]["terminal_observation"] = info["final_obs"][slot]
                infos[-1]["TimeLimit.truncated"] = bool(truncated[slot] and not terminated[slot])
        return observation, reward.astype(np.float32), over, infos

    def close(self) -> None:
        """Close the World."""
        self._env.close()

    def get_images(self) -> Sequence[np.ndarray | None]:
        """A picture of every slot."""
        return self._env.render() or ()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """An attribute of the vector environment, the same for every slot."""
        return [getattr(self._env, attr_name) for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Slots have no attributes of their own."""
        raise AttributeError(f"the slots of a World share everything; {attr_name!r} cannot be set in some of them")

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        """Slots have no methods of their own."""
        raise AttributeError(f"the slots of a World share everything; {method_name!r} cannot be called in some of them")

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """No slot is wrapped."""
        return [False for _ in self._get_indices(indices)]
