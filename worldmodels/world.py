"""A learned model as a World: reset from a recorded start, step, snapshot, restore and fork, with keyed noise."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

from learning.checkpoint import content_hash
from learning.devices import device_named
from simeval.errors import ConfigError, UnsupportedError
from simeval.noise import Key, StepKey, standard_normal, uniform
from simeval.settings import whole
from simeval.types import Array, Snapshot, Start, TimeStep
from simeval.world import World
from worldmodels.checkpoint import CHECKPOINTS, load_beginnings
from worldmodels.model import State, WorldModel

_DISAGREEMENT = "disagreement"
_CALM = {"reward": 0.0, "terminated": False, "truncated": False, "success": False, _DISAGREEMENT: 0.0}


class LearnedWorld(World):
    """The World that a checkpoint of ``simeval train worldmodel=…`` imagines.

    Episodes begin at starts that were held out in training, whose first observation the checkpoint holds.
    ``batch_size`` rows are always computed together (the last batch is filled up), so a result does not depend on who
    shares it. ``truncate``: episodes are cut never (none), after so many steps, or with ``"disagreement"`` where the
    model's members disagree more than they ever do in its data; ``penalty`` times the disagreement is taken from the
    reward.
    ``temperature`` scales the noise. Signal: ``disagreement`` [1], where the model has any.

    A model whose frames are several control steps apart (``Interface.frame_skip``) shows its last frame until all
    actions of the next are given; the reward of all of them comes with it.
    """

    name = "learned"

    def __init__(
        self,
        checkpoint: str | Path,
        num_slots: int = 16,
        truncate: int | str | None = None,
        penalty: float = 0.0,
        temperature: float = 1.0,
        batch_size: int = 16,
        device: str = "cpu",
        threads: int = 1,
    ):
        folder = CHECKPOINTS.located(checkpoint)
        self._device = device_named(device)
        self._model: WorldModel = CHECKPOINTS.load(folder).to(self._device)
        self._beginnings = load_beginnings(folder, self._model.interface)
        self.num_slots = whole("num_slots", num_slots)
        self._batch_size = whole("batch_size", batch_size)
        self._threads = whole("threads", threads)
        self._trusted = self._model.trusted
        if truncate is not None and truncate != _DISAGREEMENT:
            if not isinstance(truncate, int):
                raise ConfigError(f"truncate is a number of steps, disagreement, or null; received {truncate!r}")
            whole("truncate", truncate)
        if (truncate == _DISAGREEMENT or penalty) and self._trusted is None:
            raise UnsupportedError(f"world model {self._model.kind!r} has one opinion, and no disagreement to act on")
        if not (np.isfinite(penalty) and penalty >= 0 and np.isfinite(temperature) and temperature >= 0):
            raise ConfigError(f"penalty and temperature are numbers from 0 on; received {penalty!r}, {temperature!r}")
        self._truncate, self._penalty, self._temperature = truncate, float(penalty), float(temperature)
        interface = self._model.interface
        self.observation_space = gymnasium.spaces.Dict(dict(interface.observation))
        self.action_space = interface.action
        self.control_dt = interface.control_dt
        self.success_hold = interface.success_hold
        self.conventions = interface.conventions
        begun = {start.task for start in self._beginnings.starts}
        self.tasks = tuple(task for task in interface.tasks if task in begun)
        self._places = {start: place for place, start in enumerate(self._beginnings.starts)}
        self.fingerprint = (
            f"{self._model.kind} {content_hash(folder)} truncate={truncate} penalty={self._penalty:g} "
            f"temperature={self._temperature:g} batch_size={batch_size} {self._device.type} threads={threads} "
            f"torch={torch.__version__}"
        )
        self._rows: list[dict[str, Any] | None] = [None] * self.num_slots
        self._none = np.zeros(0, np.float32)

    def start(self, task: str, seed: int) -> Start:
        """One of the recorded starts of ``task``."""
        self.check_task(task)
        own = [start for start in self._beginnings.starts if start.task == task]
        return own[Key(seed).integer("learned", task) % len(own)]

    def starts(self, task: str, count: int, seed: int) -> list[Start]:
        """See ``World.starts``: recorded starts in an order that ``seed`` draws, again and again when all were had."""
        self.check_task(task)
        own = [start for start in self._beginnings.starts if start.task == task]
        order = Key(seed).stream("start").event("learned", task).permutation(len(own))
        return [own[order[index % len(own)]] for index in range(count)]

    def horizon(self, task: str) -> int:
        """The longest that recorded episodes of ``task`` were allowed."""
        self.check_task(task)
        return self._model.interface.horizons[task]

    @torch.no_grad()
    def reset(self, slots: Sequence[int], starts: Sequence[Start], keys: Sequence[StepKey]) -> TimeStep:
        """See ``World.reset``."""
        self.check_slots(slots)
        for start in starts:
            self.check_task(start.task)
            for perturbation in start.perturbations:
                raise UnsupportedError(f"world {self.name!r} has no perturbation axis {perturbation.axis!r}")
            if start not in self._places:
                raise ConfigError(
                    f"the start of task {start.task!r} with seed {start.seed} is none of the "
                    f"{len(self._places)} that this world model holds; take one that World.start gives"
                )
        places = [self._places[start] for start in starts]
        seen = {name: array[places] for name, array in self._beginnings.seen.items()}
        tasks = np.array([self._model.interface.tasks.index(start.task) for start in starts])
        draws = uniform(keys, (self._model.start_draws,), "beginning").astype(np.float32)
        torch.set_num_threads(self._threads)
        for own, rows in self._batches(len(slots)):
            state = self._model.encode(
                {name: self._sent(array[rows]) for name, array in seen.items()},
                *(self._sent(array[rows]) for array in (tasks, draws)),
            )
            for row, kept in zip(own, self._kept(state), strict=False):
                shown = {name: array[row].copy() for name, array in seen.items()}
                self._rows[slots[row]] = {"state": kept, "seen": shown, **_CALM, "steps": 0, "given": self._none}
        return self._time_step(slots)

    def step(self, slots: Sequence[int], actions: Array, keys: Sequence[StepKey]) -> TimeStep:
        """See ``World.step``."""
        self.check_slots(slots)
        held = [self._running(slot) for slot in slots]
        self.check_actions(slots, actions, keys)
        skip, due = self._model.interface.frame_skip, []
        for place, (row, action) in enumerate(zip(held, np.asarray(actions, dtype=np.float32), strict=True)):
            given = np.concatenate([row["given"], action])
            whole_frame = len(given) == skip * len(action)
            new = row | {"steps": row["steps"] + 1, "given": given, "reward": 0.0}
            new["truncated"] = self._is_cut(new["steps"], row[_DISAGREEMENT])
            self._rows[slots[place]] = new
            due += [place] if whole_frame else []
        if due:
            self._imagine([slots[place] for place in due], [keys[place] for place in due])
        return self._time_step(slots)

    @torch.no_grad()
    def _imagine(self, slots: Sequence[int], keys: Sequence[StepKey]) -> None:
        """The next frame of some slots, all of whose actions are given."""
        held = [self._running(slot) for slot in slots]
        given = np.stack([row["given"] for row in held])
        noise = (self._temperature * standard_normal(keys, (self._model.step_draws,), "step")).astype(np.float32)
        torch.set_num_threads(self._threads)
        for own, rows in self._batches(len(slots)):
            state = {
                name: self._sent(np.stack([held[row]["state"][name] for row in rows])) for name in held[0]["state"]
            }
            following, imagined = self._model.step(state, self._sent(given[rows]), self._sent(noise[rows]))
            seen = {name: value.cpu().numpy() for name, value in imagined.seen.items()}
            columns = {name: getattr(imagined, name).cpu().numpy() for name in ("reward", "success", "terminated")}
            apart = imagined.disagreement
            columns[_DISAGREEMENT] = np.zeros(len(rows)) if apart is None else apart.cpu().numpy()
            for place, (row, kept) in enumerate(zip(own, self._kept(following), strict=False)):
                new = {name: column[place].item() for name, column in columns.items()}
                new["truncated"] = self._is_cut(held[row]["steps"], new[_DISAGREEMENT])
                new["reward"] -= self._penalty * new[_DISAGREEMENT]
                new |= {"seen": {name: array[place].copy() for name, array in seen.items()}, "state": kept}
                self._rows[slots[row]] = held[row] | new | {"given": self._none}

    def snapshot(self, slots: Sequence[int]) -> list[Snapshot]:
        """See ``World.snapshot``."""
        self.check_slots(slots)
        return [Snapshot(self.snapshot_fingerprint, _copied(self._running(slot))) for slot in slots]

    def restore(self, slots: Sequence[int], snapshots: Sequence[Snapshot]) -> TimeStep:
        """See ``World.restore``."""
        self.check_slots(slots)
        self.check_snapshots(snapshots)
        for slot, snapshot in zip(slots, snapshots, strict=True):
            self._rows[slot] = _copied(snapshot.state)
        return self._time_step(slots)

    def _running(self, slot: int) -> dict[str, Any]:
        row = self._rows[slot]
        if row is None:
            raise RuntimeError(f"world {self.name!r}: slot {slot} was never reset; call reset or restore first")
        return row

    def _batches(self, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Rows, and the same as full batches: the last is filled up with its first."""
        batches = []
        for begin in range(0, count, self._batch_size):
            own = np.arange(begin, min(begin + self._batch_size, count))
            batches.append((own, np.concatenate([own, np.repeat(own[:1], self._batch_size - len(own))])))
        return batches

    def _sent(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)

    def _kept(self, state: State) -> list[dict[str, np.ndarray]]:
        arrays = {name: value.cpu().numpy() for name, value in state.items()}
        return [{name: value[row].copy() for name, value in arrays.items()} for row in range(self._batch_size)]

    def _is_cut(self, steps: int, disagreement: float) -> bool:
        if self._truncate == _DISAGREEMENT and self._trusted is not None:
            return disagreement > self._trusted
        return isinstance(self._truncate, int) and steps >= self._truncate

    def _time_step(self, slots: Sequence[int]) -> TimeStep:
        held = [self._running(slot) for slot in slots]

        def column(name: str, dtype: type) -> np.ndarray:
            return np.array([row[name] for row in held], dtype=dtype)

        apart = {_DISAGREEMENT: column(_DISAGREEMENT, np.float32)}
        seen = {name: np.stack([row["seen"][name] for row in held]) for name in held[0]["seen"]}
        return TimeStep(
            self._model.interface.shown(seen),
            column("reward", np.float64),
            column("terminated", np.bool_),
            column("truncated", np.bool_),
            column("success", np.bool_) & (self.success_hold > 0),
            {} if self._trusted is None else apart,
        )


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _copied(inner) for name, inner in value.items()}
    return value.copy() if isinstance(value, np.ndarray) else value
