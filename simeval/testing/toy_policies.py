"""Policies for the toy worlds: stateless, with memory, and stochastic with its log-density and entropy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri

from simeval.noise import StepKey, uniform
from simeval.policy import Memory, Policy, PolicyStep
from simeval.testing.toys import TOY_REACH
from simeval.types import Observation


class ToyExpert(Policy):
    """Reads the instruction and the state, and reaches or pushes; it needs no memory and no noise."""

    observation_keys = ("state",)

    def act(
        self, observation: Observation, instruction: Sequence[str], memory: Memory, keys: Sequence[StepKey]
    ) -> PolicyStep:
        """See ``Policy.act``."""
        return PolicyStep(_expert_action(observation["state"], instruction).astype(np.float32), {})


def _expert_action(state: np.ndarray, instruction: Sequence[str]) -> np.ndarray:
    right = np.array(["right" in text for text in instruction])
    pushes = np.array(["push" in text for text in instruction])
    disc, velocity, puck = state[:, 0:2], state[:, 2:4], state[:, 4:6]
    zone = np.where(right[:, None], state[:, 10:12], state[:, 8:10])
    to_zone = zone - puck
    distance = np.maximum(np.sqrt((to_zone * to_zone).sum(axis=1)), 1e-9)[:, None]
    along = to_zone / distance
    side = np.stack([-along[:, 1], along[:, 0]], axis=1)
    offset = disc - puck
    ahead, lateral = (offset * along).sum(axis=1), (offset * side).sum(axis=1)
    turn = np.where(lateral >= 0.0, 1.0, -1.0)[:, None]
    around = puck + turn * (TOY_REACH + 0.1) * side - 0.15 * along
    behind = puck - (TOY_REACH + 0.03) * along
    through = disc + 0.35 * along - 2.0 * lateral[:, None] * side
    target = np.where((ahead > -0.08)[:, None], around, behind)
    target = np.where(((ahead < -0.08) & (np.abs(lateral) < 0.04))[:, None], through, target)
    target = np.where((distance < 0.05) & (ahead < -0.08)[:, None], disc, target)
    target = np.where(pushes[:, None], target, zone)
    return np.clip(1.6 * (target - disc) - 0.3 * velocity, -1.0, 1.0)


class ToySmoother(Policy):
    """The expert seen through a memory: each action is an average of the expert's and of the action before."""

    observation_keys = ("state",)

    def initial_memory(self, n: int) -> Memory:
        """``action`` [n, 2], the last one, and ``steps`` [n], how many there were."""
        return {"action": np.zeros((n, 2)), "steps": np.zeros(n, dtype=np.int64)}

    def act(
        self, observation: Observation, instruction: Sequence[str], memory: Memory, keys: Sequence[StepKey]
    ) -> PolicyStep:
        """See ``Policy.act``."""
        action = 0.7 * _expert_action(observation["state"], instruction) + 0.3 * memory["action"]
        return PolicyStep(action.astype(np.float32), {"action": action, "steps": memory["steps"] + 1})


@dataclass(frozen=True)
class ToyGaussian(Policy):
    """A Gaussian about the expert's action, truncated to the action space, with its log-density and entropy."""

    sigma: float = 0.4
    observation_keys = ("state",)

    @property
    def fingerprint(self) -> str:
        """See ``Policy.fingerprint``."""
        return f"ToyGaussian sigma={self.sigma!r}"

    def act(
        self, observation: Observation, instruction: Sequence[str], memory: Memory, keys: Sequence[StepKey]
    ) -> PolicyStep:
        """See ``Policy.act``."""
        mean, sigma = _expert_action(observation["state"], instruction), self.sigma
        low, high = (-1.0 - mean) / sigma, (1.0 - mean) / sigma
        mass = ndtr(high) - ndtr(low)
        draw = mean + sigma * ndtri(ndtr(low) + mass * uniform(keys, (2,), "action"))
        action = np.clip(draw, -1.0, 1.0).astype(np.float32)
        log_density = -0.5 * ((action - mean) / sigma) ** 2 - np.log(np.sqrt(2 * np.pi) * sigma * mass)
        entropy = np.log(np.sqrt(2 * np.pi * np.e) * sigma * mass) + (
            (low * _gauss(low) - high * _gauss(high)) / (2 * mass)
        )
        return PolicyStep(action, {}, log_prob=log_density.sum(axis=1), entropy=entropy.sum(axis=1))


def _gauss(x: np.ndarray) -> np.ndarray:
    return np.exp(-0.5 * x * x) / np.sqrt(2 * np.pi)


def toy_policies() -> Mapping[str, Policy]:
    """One toy policy of each kind: stateless, with memory, stochastic."""
    return {"expert": ToyExpert(), "smoother": ToySmoother(), "gaussian": ToyGaussian()}
