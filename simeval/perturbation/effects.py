"""The effects that act on one rollout together, with their noise and their memory."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from simeval.noise import Stream
from simeval.perturbation.effect import Effect, EffectMemory
from simeval.perturbation.registry import effect_of
from simeval.types import Perturbation, Rollout, WorldSpec, content_hash


class Effects:
    """The effects of a rollout's perturbations, each while its perturbation holds, in their order.

    The noise of a perturbation is keyed by its axis (and, among several of one axis, by its number), so that it is the
    same alone and among others. Memories are kept by what a perturbation is, so that a branch, which adds
    perturbations to its parent's, goes on with the parent's memories.
    """

    def __init__(self, rollout: Rollout, perturbations: Sequence[Perturbation], spec: WorldSpec):
        self._parts: list[tuple[str, Perturbation, Effect, Stream]] = []
        axes: Counter[str] = Counter()
        seen: Counter[str] = Counter()
        for perturbation in perturbations:
            axis, content = perturbation.axis, content_hash(perturbation.to_json())
            stream = rollout.key("perturbation").stream(f"perturbation/{axis}/{axes[axis]}")
            name = f"{axis}/{content}/{seen[content]}"
            self._parts.append((name, perturbation, effect_of(perturbation, spec), stream))
            axes[axis] += 1
            seen[content] += 1
        self.observation_keys = frozenset(key for _, _, effect, _ in self._parts for key in effect.observation_keys)
        """The observations that some effect changes."""
        self.remembers_pictures = any(effect.remembers_pictures for _, _, effect, _ in self._parts)
        """Whether pictures matter that nobody looks at."""

    def __bool__(self) -> bool:
        return bool(self._parts)

    def begin(self, inherited: EffectMemory) -> EffectMemory:
        """The memories to go on with: those ``inherited`` of perturbations that are the same, the others at first."""
        memories = {name: inherited.get(name, effect.initial_memory()) for name, _, effect, _ in self._parts}
        return {name: memory for name, memory in memories.items() if memory}

    def instruction(self, instruction: str) -> str:
        """The instruction after all language effects."""
        for _, _, effect, _ in self._parts:
            instruction = effect.instruction(instruction)
        return instruction

    def observation(
        self, observation: Mapping[str, Any], step: int, memory: EffectMemory
    ) -> tuple[dict[str, Any], EffectMemory]:
        """What they make of one slot's observation at ``step``, and the memories after it.

        ``observation`` has those of ``observation_keys`` that somebody looks at.
        """
        shown, memories = dict(observation), dict(memory)
        for name, perturbation, effect, stream in self._parts:
            if effect.observation_keys and perturbation.holds(step):
                own = {key: shown[key] for key in effect.observation_keys if key in shown}
                changed, after = effect.observation(own, memories.get(name, {}), stream.key(step))
                shown.update(changed)
                _keep(memories, name, after)
        return shown, memories

    def action(self, action: np.ndarray, step: int, memory: EffectMemory) -> tuple[np.ndarray, EffectMemory]:
        """One slot's action after all actuation effects that hold at ``step``, and the memories after it."""
        memories = dict(memory)
        for name, perturbation, effect, stream in self._parts:
            if perturbation.holds(step):
                action, after = effect.action(action, memories.get(name, {}), stream.key(step))
                _keep(memories, name, after)
        return action, memories


def _keep(memories: dict[str, Any], name: str, memory: EffectMemory) -> None:
    """Note what an effect remembers, and nothing where that is nothing: checkpoints without memory stay as they are."""
    if memory:
        memories[name] = memory
