"""Replay of recorded actions: an episode that has the noise of a recorded one gets that one's actions."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np

from simeval.errors import ConfigError, unknown
from simeval.noise import StepKey
from simeval.policy import Memory, Policy, PolicyStep
from simeval.reader import Run
from simeval.types import Observation, WorldSpec


class Replay(Policy):
    """Plays ``recordings``: seed of a rollout's policy stream -> its actions ``[T, A]``, action t at step t.

    A rollout that is asked for again with the same seed is thereby replayed in another World, or under a perturbation.
    ``past_end`` says what follows the last recorded action: ``"hold"`` repeats it, ``"raise"`` is an error.
    """

    def __init__(
        self,
        recordings: Mapping[int, np.ndarray],
        past_end: Literal["hold", "raise"] = "hold",
    ):
        if past_end not in ("hold", "raise"):
            raise unknown("value of past_end", past_end, ("hold", "raise"))
        self._recordings = recordings
        self._past_end = past_end

    @classmethod
    def from_run(
        cls,
        run: str | Path | Run,
        policy: str | None = None,
        rollouts: Sequence[str] | None = None,
        past_end: Literal["hold", "raise"] = "hold",
    ) -> "Replay":
        """The actions of a recorded run, read when needed.

        Taken are the finished roots of ``policy`` (which may be left out where the run has one policy), or those named
        in ``rollouts``; a branch is replayed from its root's reset on.
        """
        opened = run if isinstance(run, Run) else Run(run)
        found: dict[int, str] = {}
        for rollout_id in _chosen(opened, policy, rollouts):
            seed = opened.rollout(rollout_id).key("policy").seed
            if seed in found:
                raise ConfigError(
                    f"rollouts {found[seed]} and {rollout_id} of {opened.path} share policy seed {seed}, so a replay "
                    "cannot tell them apart; name one policy, or the rollouts to replay"
                )
            found[seed] = rollout_id
        if not found:
            raise ConfigError(f"{opened.path} has no finished rollouts to replay")
        return cls(_RunActions(opened, found), past_end)

    def bind(self, spec: WorldSpec) -> Policy:
        """See ``Policy.bind``; the recorded actions must have the World's shape."""
        first = self._recordings[next(iter(self._recordings))]
        if first.shape[1:] != spec.action_space.shape:
            raise ConfigError(
                f"the recorded actions have shape {first.shape[1:]}; "
                f"world {spec.name!r} takes {spec.action_space.shape}"
            )
        return self

    @property
    def fingerprint(self) -> str:
        """See ``Policy.fingerprint``; the first call reads every recorded action."""
        return f"Replay of {len(self._recordings)} recordings {self._content} past_end={self._past_end}"

    @cached_property
    def _content(self) -> str:
        digest = hashlib.blake2b(digest_size=10)
        for seed in sorted(self._recordings):
            actions = np.ascontiguousarray(self._recordings[seed])
            digest.update(f"{seed} {actions.dtype.str} {actions.shape} ".encode())
            digest.update(actions.tobytes())
        return digest.hexdigest()

    def act(
        self, observation: Observation, instruction: Sequence[str], memory: Memory, keys: Sequence[StepKey]
    ) -> PolicyStep:
        """See ``Policy.act``."""
        return PolicyStep(np.stack([self._action(key) for key in keys]), {})

    def _action(self, key: StepKey) -> np.ndarray:
        try:
            actions = self._recordings[key.stream.seed]
        except KeyError:
            raise ConfigError(
                f"nothing was recorded under policy seed {key.stream.seed}; {len(self._recordings)} other seeds were: "
                "run the recorded protocol with the seed of that run"
            ) from None
        if key.step >= len(actions) and self._past_end == "raise":
            raise ConfigError(
                f"the recording of policy seed {key.stream.seed} has {len(actions)} actions, none for step {key.step}; "
                "shorten the horizon, or replay with past_end=hold"
            )
        return actions[min(key.step, len(actions) - 1)]


def _chosen(run: Run, policy: str | None, rollouts: Sequence[str] | None) -> list[str]:
    if rollouts is not None:
        return list(rollouts)
    roots = [name for name in run.requested if name in run and run.rollout(name).parent is None]
    names = dict.fromkeys(run.rollout(name).policy for name in roots)
    if policy is None and len(names) > 1:
        raise ConfigError(f"{run.path} records several policies; name the one to replay: {', '.join(names)}")
    if policy is not None and policy not in names:
        raise unknown(f"policy recorded in {run.path}", policy, names)
    return [name for name in roots if policy in (None, run.rollout(name).policy) and len(run[name].action)]


class _RunActions(Mapping[int, np.ndarray]):
    """Seed -> recorded actions, of which the last few that were asked for are kept."""

    def __init__(self, run: Run, rollouts: Mapping[int, str], keep: int = 256):
        self._run = run
        self._rollouts = rollouts
        self._keep = keep
        self._kept: dict[int, np.ndarray] = {}

    def __getitem__(self, seed: int) -> np.ndarray:
        if seed not in self._kept:
            actions = np.asarray(self._run.whole(self._rollouts[seed]).action)
            while len(self._kept) >= self._keep:
                del self._kept[next(iter(self._kept))]
            self._kept[seed] = actions
        return self._kept[seed]

    def __iter__(self) -> Iterator[int]:
        return iter(self._rollouts)

    def __len__(self) -> int:
        return len(self._rollouts)
