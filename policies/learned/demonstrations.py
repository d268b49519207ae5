"""Recorded episodes as training data: splits by episode, chunks that end with the episode, batches by step number."""

import itertools
from collections.abc import Iterator, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from policies.learned.features import Batch, Features, Inputs, channels_first, stacked_numbers
from policies.learned.words import Vocabulary
from simeval.conventions import NAMES, UNDECLARED, Conventions, in_words
from simeval.episode import Episode
from simeval.errors import ConfigError, unknown
from simeval.noise import Key
from simeval.reader import Run

INTENDED = "policy/intended"
"""What a disturbed demonstrator meant to do; learned from in place of what it did, where it is recorded."""


@dataclass(frozen=True, slots=True)
class _Decoded:
    images: dict[str, torch.Tensor]
    numbers: torch.Tensor
    action: torch.Tensor
    tokens: torch.Tensor


class Demonstrations:
    """The successful episodes of some runs, split once and for all by their id.

    Images stay compressed on disk; a *group* of episodes that fits into ``memory`` bytes is decoded at a time, in
    threads, while the group before it is being trained on. Everything drawn is a function of ``seed`` and the place in
    the training, so a training that is gone on with sees what it would have seen.

    An epoch has every step once, in random order; with ``early``, each episode the same number of times, at the step
    ``L u^early`` of its L, u uniform on 0..1: at 1 all its steps alike, above it dwells on the beginning, where what
    was asked for is all that tells one episode from another.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        observation_keys: Sequence[str],
        horizon: int,
        control_dt: float,
        *,
        validation: float = 0.1,
        seed: int = 0,
        memory: int = 4 << 30,
        tasks: Sequence[str] | None = None,
        early: float | None = None,
    ):
        chosen = [episode for run in runs for episode in run if _usable(episode, tasks)]
        if not chosen:
            raise ConfigError(
                f"there is no successful episode to learn from in {', '.join(str(run.path) for run in runs)}"
                + (f" in the tasks {', '.join(tasks)}" if tasks else "")
            )
        self.seed = seed
        self._memory = memory
        if early is not None and not early > 0:
            raise ConfigError(f"early is a positive power, or null; received {early}")
        self._early = early
        self._kept: dict[str, _Decoded] = {}
        held_out = {e.id for e in chosen if Key(int(e.id[:12], 16)).integer("split") / 2**63 < validation}
        self.training = [episode for episode in chosen if episode.id not in held_out]
        self.validation = [episode for episode in chosen if episode.id in held_out]
        if not self.training or (validation > 0 and not self.validation):
            raise ConfigError(
                f"of {len(chosen)} successful episodes to learn from, {len(self.validation)} would be held out; record "
                "more, or hold out none (policy.validation=0)"
            )
        conventions = _conventions(runs, {episode.rollout.world for episode in chosen})
        self.features = _features(chosen[0], observation_keys, horizon, control_dt, conventions)
        self.vocabulary = Vocabulary.of(episode.rollout.start.instruction for episode in self.training)

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """All vectors [n, P] and actions [n, A] of the training episodes, for statistics."""
        numbers = [
            np.concatenate([e.observation[key][:-1] for key in self.features.numbers], axis=1)
            if self.features.numbers
            else np.zeros((e.length, 0), np.float32)
            for e in self.training
        ]
        return np.concatenate(numbers), np.concatenate([_actions(e) for e in self.training])

    def batches(self, size: int, begin: int = 0) -> Iterator[Batch]:
        """Endless training batches of ``size``, from the ``begin``-th on; the next group is decoded meanwhile."""
        with ThreadPoolExecutor(1) as ahead:
            plan = self._plan(size, begin)
            group, batches = next(plan)
            coming = ahead.submit(self._decode, group)
            for following, later in plan:
                decoded, coming = coming.result(), ahead.submit(self._decode, following)
                yield from (self._batch(decoded, rows) for rows in batches)
                batches = later

    def _plan(self, size: int, begin: int) -> Iterator[tuple[list[Episode], list[list[tuple[int, int]]]]]:
        """Groups of episodes, and of each the batches: which step of which episode is in each row."""
        place = 0
        for epoch in itertools.count():
            draws = Key(self.seed).stream("batches").at(epoch)
            order = [self.training[index] for index in draws.permutation(len(self.training))]
            for group in self._groups(order):
                windows = self._windows([episode.length for episode in group], draws)
                shuffled = draws.permutation(len(windows))
                count = len(windows) // size or 1
                rows = [np.resize(shuffled[i * size : (i + 1) * size], size) for i in range(count)]
                batches = [[windows[index] for index in row] for row in rows]
                if place + count > begin:
                    yield group, batches[max(begin - place, 0) :]
                place += count

    def _windows(self, lengths: Sequence[int], draws: np.random.Generator) -> list[tuple[int, int]]:
        if self._early is None:
            return [(e, t) for e, length in enumerate(lengths) for t in range(length)]
        each = max(1, round(sum(lengths) / len(lengths)))
        steps = np.array(lengths)[:, None] * draws.random((len(lengths), each)) ** self._early
        return [(e, int(t)) for e, row in enumerate(steps) for t in row]

    def validation_batches(self, size: int, most: int = 32) -> Iterator[Batch]:
        """The same batches every time, from episodes that are never trained on."""
        draws = Key(self.seed).stream("validation").at(0)
        windows = [(e, t) for e, episode in enumerate(self.validation) for t in range(episode.length)]
        rows = [windows[i] for i in draws.permutation(len(windows))[: size * most]]
        if not rows:
            return
        used = sorted({e for e, _ in rows})
        decoded = dict(zip(used, self._decode([self.validation[e] for e in used]), strict=True))
        for index in range(0, len(rows) - size + 1, size) or [0]:
            part = rows[index : index + size]
            yield self._batch([decoded[e] for e, _ in part], [(i, t) for i, (_, t) in enumerate(part)])

    def _groups(self, order: Sequence[Episode]) -> Iterator[list[Episode]]:
        group: list[Episode] = []
        held = 0
        per_step = sum(3 * side * side for side in self.features.images.values()) + 8 * self.features.number_dim
        for episode in order:
            need = (episode.length + 1) * per_step
            if group and held + need > self._memory:
                yield group
                group, held = [], 0
            group.append(episode)
            held += need
        yield group

    def _decode(self, episodes: Sequence[Episode]) -> list[_Decoded]:
        """The episodes in memory; they stay there where all fit."""
        with ThreadPoolExecutor() as pool:
            fresh = [episode for episode in episodes if episode.id not in self._kept]
            decoded = dict(zip((e.id for e in fresh), pool.map(self._decoded, fresh), strict=True))
        found = [self._kept.get(episode.id) or decoded[episode.id] for episode in episodes]
        if len(episodes) == len(self.training):
            self._kept.update(decoded)
        return found

    def _decoded(self, episode: Episode) -> _Decoded:
        shown = {key: episode.observation[key] for key in self.features.observation_keys}
        return _Decoded(
            {key: channels_first(shown[key][:-1]) for key in self.features.images},
            stacked_numbers(self.features, {key: value[:-1] for key, value in shown.items()}),
            torch.from_numpy(np.ascontiguousarray(_actions(episode), dtype=np.float32)),
            self.vocabulary.encode([episode.rollout.start.instruction])[0],
        )

    def _batch(self, decoded: Sequence[_Decoded], rows: Sequence[tuple[int, int]]) -> Batch:
        ahead = torch.arange(self.features.horizon)
        inputs = Inputs(
            {key: torch.stack([decoded[e].images[key][t] for e, t in rows]) for key in self.features.images},
            torch.stack([decoded[e].numbers[t] for e, t in rows]),
            torch.stack([decoded[e].tokens for e, _ in rows]),
        )
        chunks = [decoded[e].action[(t + ahead).clamp(max=len(decoded[e].action) - 1)] for e, t in rows]
        ends = [len(decoded[e].numbers) - 1 for e, _ in rows]
        later = [decoded[e].numbers[[min(t + len(ahead), end), end]] for (e, t), end in zip(rows, ends, strict=True)]
        return Batch(inputs, torch.stack(chunks), torch.stack(later))


def _usable(episode: Episode, tasks: Sequence[str] | None) -> bool:
    if episode.status != "done" or not episode.length or episode.rollout.parent is not None:
        return False
    wanted = tasks is None or episode.rollout.start.task in tasks
    return wanted and (episode.succeeded or not episode.ending.success_hold)


def _actions(episode: Episode) -> np.ndarray:
    return episode.source.read(INTENDED if INTENDED in episode.source.paths() else "action")


def _conventions(runs: Sequence[Run], worlds: Set[str]) -> Conventions:
    """What the Worlds of the data declared; ``ConfigError`` where they did not all declare the same."""
    found = [(run, run.conventions.get("worlds", {}).get(world)) for run in runs for world in sorted(worlds)]
    declared = [(run, Conventions.from_json(data)) for run, data in found if data is not None]
    for run, other in declared[1:]:
        first, conventions = declared[0]
        names = [name for name in NAMES if getattr(conventions, name) != getattr(other, name)]
        if names:
            said = ", ".join(
                f"{n} {in_words(getattr(conventions, n))} against {in_words(getattr(other, n))}" for n in names
            )
            raise ConfigError(
                f"the runs {first.path} and {run.path} follow different conventions ({said}), and one policy cannot "
                "learn from both; record them with the same settings of world"
            )
    return declared[0][1] if declared else UNDECLARED


def _features(
    episode: Episode, keys: Sequence[str], horizon: int, control_dt: float, conventions: Conventions
) -> Features:
    images, numbers = {}, {}
    for key in keys:
        if key not in episode.observation:
            raise unknown("observation of the runs (cameras are recorded with world.cameras)", key, episode.observation)
        value = episode.observation[key]
        if value.ndim == 4 and value.dtype == np.uint8 and value.shape[1] == value.shape[2] and value.shape[3] == 3:
            images[key] = int(value.shape[1])
        elif value.ndim == 2 and value.dtype.kind == "f":
            numbers[key] = int(value.shape[1])
        else:
            raise ConfigError(
                f"observation {key!r} is {value.dtype} {list(value.shape[1:])}: neither square RGB images nor a vector"
            )
    return Features(images, numbers, int(episode.action.shape[1]), horizon, control_dt, conventions.seen_by(keys))
