"""A learned model as a World: reset from a recorded start, step, snapshot, restore and fork, with keyed noise."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

from learning.checkpoint import content_hash
from learning.devices import device_named, thread_count
from simeval.errors import ConfigError, UnsupportedError
from simeval.noise import Key, StepKey, standard_normal, uniform
from simeval.settings import finite, slot_count, whole
from simeval.types import Array, Snapshot, Start, TimeStep
from simeval.world import World
from worldmodels.checkpoint import CHECKPOINTS, load_beginnings
from worldmodels.model import State, WorldModel

_DISAGREEMENT = "disagreement"
_CALM = {"reward": 0.0, "terminated": False, "truncated": False, "success": False, _DISAGREEMENT: 0.0}


class LearnedWorld(World):
    """The World that a checkpoint of ``simeval train worldmodel=…`` imagines.

    Episodes begin at starts that were held out in training, whose first observation the checkpoint holds; or, with
    ``simulator``, the World that the model imagines, at any start of that. There the first ``context`` frames are the
    simulator's, and the model looks on: it imagines what follows them. From one picture it could not know what moves.
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
        simulator: World | None = None,
        context: int = 1,
    ):
        folder = CHECKPOINTS.located(checkpoint)
        self._device = device_named(device)
        self._model: WorldModel = CHECKPOINTS.load(folder).to(self._device)
        self._beginnings = load_beginnings(folder, self._model.interface)
        self.num_slots = slot_count(num_slots)
        self._batch_size = whole("batch_size", batch_size)
        self._threads = thread_count(threads)
        self._trusted = self._model.trusted
        if truncate is not None and truncate != _DISAGREEMENT:
            if not isinstance(truncate, int):
                raise ConfigError(f"truncate is a number of steps, disagreement, or null; received {truncate!r}")
            whole("truncate", truncate)
        self._truncate = truncate
        self._penalty, self._temperature = finite("penalty", penalty), finite("temperature", temperature)
        if (truncate == _DISAGREEMENT or penalty) and self._trusted is None:
            raise UnsupportedError(f"world model {self._model.kind!r} has one opinion, and no disagreement to act on")
        interface = self._model.interface
        self.observation_space = gymnasium.spaces.Dict(dict(interface.observation))
        self.action_space = interface.action
        self.control_dt = interface.control_dt
        self.success_hold = interface.success_hold
        self.conventions = interface.conventions
        self._simulator, self._context = simulator, whole("context", context)
        if simulator is None:
            if context != 1:
                raise ConfigError(f"context={context} frames of a simulator were asked for, and simulator is null")
            begun = {start.task for start in self._beginnings.starts}
        else:
            interface.check(simulator.spec)
            if simulator.num_slots < self.num_slots:
                raise ConfigError(f"the simulator has {simulator.num_slots} slots for {self.num_slots} of this world")
            begun = set(simulator.tasks)
        self.tasks = tuple(task for task in interface.tasks if task in begun)
        if not self.tasks:
            raise ConfigError(f"the model learned {', '.join(interface.tasks)}, and may begin in {', '.join(begun)}")
        self._places = {start: place for place, start in enumerate(self._beginnings.starts)}
        self.fingerprint = (
            f"{self._model.kind} {content_hash(folder)} truncate={truncate} penalty={self._penalty:g} "
            f"temperature={self._temperature:g} batch_size={batch_size} {self._device.type} threads={threads} "
            f"torch={torch.__version__}"
        )
        if simulator is not None:
            self.fingerprint += f" context={context} of {simulator.fingerprint}"
        self._rows: list[dict[str, Any] | None] = [None] * self.num_slots
        self._none = np.zeros(0, np.float32)
        self._block = interface.frame_skip * interface.action_dim

    def start(self, task: str, seed: int) -> Start:
        """One of the recorded starts of ``task``, or the simulator's."""
        self.check_task(task)
        if self._simulator is not None:
            return self._simulator.start(task, seed)
        own = [start for start in self._beginnings.starts if start.task == task]
        return own[Key(seed).integer("learned", task) % len(own)]

    def starts(self, task: str, count: int, seed: int) -> list[Start]:
        """See ``World.starts``: recorded starts in an order that ``seed`` draws, again and again when all were had."""
        self.check_task(task)
        if self._simulator is not None:
            return self._simulator.starts(task, count, seed)
        own = [start for start in self._beginnings.starts if start.task == task]
        order = Key(seed).stream("start").event("learned", task).permutation(len(own))
        return [own[order[index % len(own)]] for index in range(count)]

    def horizon(self, task: str) -> int:
        """The longest that recorded episodes of ``task`` were allowed."""
        self.check_task(task)
        return self._model.interface.horizons[task]

    def objection(self, start: Start) -> str | None:
        """See ``World.objection``."""
        return None if self._simulator is None else self._simulator.objection(start)

    def check_start(self, start: Start) -> None:
        """See ``World.check_start``: it is one of those that the checkpoint holds, or the simulator's."""
        self.check_task(start.task)
        for perturbation in start.perturbations:
            raise UnsupportedError(f"world {self.name!r} has no perturbation axis {perturbation.axis!r}")
        if self._simulator is not None:
            self._simulator.check_start(start)
        elif start not in self._places:
            raise ConfigError(
                f"the start of task {start.task!r} with seed {start.seed} is none of the "
                f"{len(self._places)} that this world model holds; take one that World.start gives, or name the "
                "simulator to begin in (world.simulator)"
            )

    @torch.no_grad()
    def reset(self, slots: Sequence[int], starts: Sequence[Start], keys: Sequence[StepKey]) -> TimeStep:
        """See ``World.reset``."""
        self.check_slots(slots)
        for start in starts:
            self.check_start(start)
        if self._simulator is None:
            places = [self._places[start] for start in starts]
            seen = {name: array[places] for name, array in self._beginnings.seen.items()}
        else:
            seen = self._model.interface.seen(self._simulator.reset(slots, starts, keys).observation)
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
                self._rows[slots[row]] = {
                    "state": kept,
                    "seen": shown,
                    **_CALM,
                    "steps": 0,
                    "given": self._none,
                    "context": (self._context - 1) * self._model.interface.frame_skip,
                }
        return self._time_step(slots)

    @torch.no_grad()
    def step(self, slots: Sequence[int], actions: Array, keys: Sequence[StepKey]) -> TimeStep:
        """See ``World.step``."""
        self.check_slots(slots)
        held = [self._running(slot) for slot in slots]
        self.check_actions(slots, actions, keys)
        given = np.asarray(actions, dtype=np.float32)
        torch.set_num_threads(self._threads)
        looking, imagining = [], []
        for place, row in enumerate(held):
            block = np.concatenate([row["given"], given[place]])
            steps = row["steps"] + 1
            new = row | {"steps": steps, "given": block, "reward": 0.0}
            new["truncated"] = self._is_cut(steps, row[_DISAGREEMENT])
            self._rows[slots[place]] = new
            if row["context"]:
                looking.append(place)
            elif len(block) == self._block:
                imagining.append(place)
        if looking:
            self._look([slots[i] for i in looking], np.asarray(actions)[looking], [keys[i] for i in looking])
        if imagining:
            self._imagine([slots[i] for i in imagining], [keys[i] for i in imagining])
        return self._time_step(slots)

    def snapshot(self, slots: Sequence[int]) -> list[Snapshot]:
        """See ``World.snapshot``."""
        self.check_slots(slots)
        states = [_copied(self._running(slot)) for slot in slots]
        if self._simulator is not None:
            looking = [place for place, state in enumerate(states) if state["context"]]
            found = self._simulator.snapshot([slots[place] for place in looking]) if looking else []
            for place, snapshot in zip(looking, found, strict=True):
                states[place]["simulator"] = snapshot.state
        return [Snapshot(self.snapshot_fingerprint, state) for state in states]

    def restore(self, slots: Sequence[int], snapshots: Sequence[Snapshot]) -> TimeStep:
        """See ``World.restore``."""
        self.check_slots(slots)
        self.check_snapshots(snapshots)
        states = [_copied(snapshot.state) for snapshot in snapshots]
        looking = [place for place, state in enumerate(states) if state["context"]]
        if self._simulator is not None and looking:
            mark = self._simulator.snapshot_fingerprint
            self._simulator.restore(
                [slots[place] for place in looking],
                [Snapshot(mark, states[place].pop("simulator")) for place in looking],
            )
        for slot, state in zip(slots, states, strict=True):
            self._rows[slot] = state
        return self._time_step(slots)

    def close(self) -> None:
        """See ``World.close``."""
        if self._simulator is not None:
            self._simulator.close()

    def _look(self, slots: Sequence[int], actions: np.ndarray, keys: Sequence[StepKey]) -> None:
        """What the simulator shows next; the model takes in a frame, where it is one."""
        assert self._simulator is not None
        step = self._simulator.step(slots, actions, keys)
        seen = self._model.interface.seen(step.observation)
        for place, slot in enumerate(slots):
            row = self._running(slot)
            row |= {
                "seen": {name: array[place].copy() for name, array in seen.items()},
                "reward": float(step.reward[place]),
                "terminated": bool(step.terminated[place]),
                "success": bool(step.success[place]),
                "context": row["context"] - 1,
            }
        due = self._due(slots)
        given = [self._running(slot)["given"] for slot in due]
        noise = self._noise([key for slot, key in zip(slots, keys, strict=True) if slot in due])
        for own, rows in self._batches(len(due)):
            shown = [self._running(due[row])["seen"] for row in rows]
            frames = {name: self._sent(np.stack([one[name] for one in shown])) for name in shown[0]}
            action = self._sent(np.stack([given[row] for row in rows]))
            state = self._model.observe(
                self._states([due[row] for row in rows]), action, frames, self._sent(noise[rows])
            )
            for row, kept in zip(own, self._kept(state), strict=False):
                self._running(due[row]).update(state=kept, given=self._none)

    def _imagine(self, slots: Sequence[int], keys: Sequence[StepKey]) -> None:
        """The next frame of some slots, all of whose actions are given."""
        for slot, foreseen in zip(slots, self._foreseen(slots, keys), strict=True):
            self._running(slot).update(foreseen, given=self._none)

    def _due(self, slots: Sequence[int]) -> list[int]:
        """Those in which all actions of a frame are given."""
        return [slot for slot in slots if len(self._running(slot)["given"]) == self._block]

    def _noise(self, keys: Sequence[StepKey]) -> np.ndarray:
        return (self._temperature * standard_normal(keys, (self._model.step_draws,), "step")).astype(np.float32)

    def _foreseen(self, slots: Sequence[int], keys: Sequence[StepKey]) -> list[dict[str, Any]]:
        """What the model says of the next frame of some slots, all of whose actions are given, and its state then."""
        given, noise, found = [self._running(slot)["given"] for slot in slots], self._noise(keys), []
        for own, rows in self._batches(len(slots)):
            action = self._sent(np.stack([given[row] for row in rows]))
            following, imagined = self._model.step(
                self._states([slots[row] for row in rows]), action, self._sent(noise[rows])
            )
            seen = {name: value.cpu().numpy() for name, value in imagined.seen.items()}
            columns = {name: getattr(imagined, name).cpu().numpy() for name in ("reward", "success", "terminated")}
            apart = imagined.disagreement
            columns[_DISAGREEMENT] = np.zeros(len(rows)) if apart is None else apart.cpu().numpy()
            for place, (row, kept) in enumerate(zip(own, self._kept(following), strict=False)):
                said: dict[str, Any] = {name: column[place].item() for name, column in columns.items()}
                said["truncated"] = self._is_cut(self._running(slots[row])["steps"], said[_DISAGREEMENT])
                said["reward"] -= self._penalty * said[_DISAGREEMENT]
                said["seen"] = {name: array[place].copy() for name, array in seen.items()}
                found.append({**said, "state": kept})
        return found

    def _states(self, slots: Sequence[int]) -> dict[str, torch.Tensor]:
        held = [self._running(slot)["state"] for slot in slots]
        return {name: self._sent(np.stack([state[name] for state in held])) for name in held[0]}

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
