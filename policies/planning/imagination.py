"""What would follow: candidate actions rolled out in the slots of a World, from the state that an episode is in."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from simeval.noise import Key, StepKey, Stream
from simeval.policy import SNAPSHOT
from simeval.types import Observation, Snapshot
from simeval.world import World


class Origin(ABC):
    """How the state to plan from is found in what a policy is shown."""

    observation_keys: tuple[str, ...]

    @abstractmethod
    def snapshots(self, observation: Observation, instruction: Sequence[str]) -> list[Snapshot]:
        """For each of ``n`` observations, a snapshot that the planning World restores."""


class TrueState(Origin):
    """The state of the World acted in, for planning in the same simulator; a privileged policy, as experts are."""

    observation_keys = (SNAPSHOT,)

    def snapshots(self, observation: Observation, instruction: Sequence[str]) -> list[Snapshot]:
        """See ``Origin.snapshots``."""
        return list(observation[SNAPSHOT])


@dataclass(slots=True)
class _Candidate:
    """One sequence of actions [H, A] to be tried from a snapshot, and what has come of it."""

    origin: Snapshot
    actions: np.ndarray
    step: int
    stream: Stream
    rewards: list[float] = field(default_factory=list)
    solved: bool = False
    broken: str = ""

    def value(self) -> float:
        """The sum of rewards, over as many steps for every candidate; minus infinity if the simulation broke.

        An episode that ended solved counts as if it had stayed at its last reward. One that ended otherwise earns
        nothing more, and nothing by ending: the steps that it misses count as its worst, where that is below zero.
        """
        if self.broken:
            return -np.inf
        missed = len(self.actions) - len(self.rewards)
        if not missed:
            return sum(self.rewards)
        rest = self.rewards[-1] if self.solved else min(0.0, *self.rewards)
        return sum(self.rewards) + missed * rest


class Imagination:
    """Rolls candidates out in all slots of ``world`` at once: the planner's own, in which nothing lasts between calls.

    Candidates of one episode and step share the World's noise, so that they differ by their actions alone. It is keyed
    by the policy's key, and so is another than what the episode itself will meet: the future is not known.
    """

    def __init__(self, world: World):
        self.world = world

    def values(
        self, origins: Sequence[Snapshot], keys: Sequence[StepKey], actions: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """What each of the ``actions`` [N, H, A] of a row earns from its snapshot, [N]; rows may differ in N.

        Raises ``RuntimeError``, with a traceback, where every candidate of a row broke the simulation.
        """
        rows = []
        for origin, key, tried in zip(origins, keys, actions, strict=True):
            seed = Key(key.stream.seed).integer(key.stream.name, "imagined", key.step)
            stream = Key(seed).stream("world")
            rows.append([_Candidate(origin, candidate, key.step, stream) for candidate in tried])
        everything = [candidate for row in rows for candidate in row]
        for begin in range(0, len(everything), self.world.num_slots):
            self._roll_out(everything[begin : begin + self.world.num_slots])
        for row in rows:
            if all(candidate.broken for candidate in row):
                raise RuntimeError(f"every candidate broke the simulation that is planned in\n{row[0].broken}")
        return [np.array([candidate.value() for candidate in row]) for row in rows]

    def _roll_out(self, candidates: Sequence[_Candidate]) -> None:
        slots = list(range(len(candidates)))
        failures = self.world.restore(slots, [candidate.origin for candidate in candidates]).failures
        for slot, reason in failures.items():
            candidates[slot].broken = reason
        for ahead in range(len(candidates[0].actions)):
            slots = [slot for slot in slots if not candidates[slot].broken]
            if not slots:
                return
            going = [candidates[slot] for slot in slots]
            result = self.world.step(
                slots,
                np.stack([candidate.actions[ahead] for candidate in going]),
                [candidate.stream.key(candidate.step + 1 + ahead) for candidate in going],
            )
            ended = np.asarray(result.terminated) | np.asarray(result.truncated)
            for row, candidate in enumerate(going):
                candidate.broken = result.failures.get(row, "")
                candidate.rewards.append(float(result.reward[row]))
                candidate.solved = bool(result.success[row])
            slots = [slot for slot, over in zip(slots, ended, strict=True) if not over]
