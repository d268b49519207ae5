"""The plain, frozen data that everything else is made of: starts, perturbations, rollouts, time steps, snapshots."""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import gymnasium
import numpy as np

from simeval.codec import pack, unpack
from simeval.conventions import UNDECLARED, Conventions
from simeval.errors import ConfigError, SnapshotError, unknown
from simeval.noise import Key

Array = Any
"""A numpy array, or a device array of the World's and Policy's own library: the core never needs to know which."""

Observation = Mapping[str, Array]
"""Observation key -> array ``[n, ...]``."""

STREAMS = ("world", "policy", "perturbation")
"""The noise streams of a rollout: of the World's steps, of the policy, and of the perturbations around the World."""


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces: equal data gives equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def content_hash(value: Any) -> str:
    """20 hex digits that identify JSON data by content, the same in every process and version of Python."""
    return hashlib.blake2b(canonical_json(value).encode(), digest_size=10).hexdigest()


@dataclass(frozen=True, slots=True)
class Perturbation:
    """One controlled change to a rollout: plain data; ``simeval.perturbation`` and the Worlds give it effect.

    ``axis`` is a dotted name, its first part the kind (``initial_state``, ``dynamics``, ``appearance``, ``sensor``,
    ``actuation``, ``language``); ``params`` is JSON data; it holds for control steps ``from_step <= t < to_step``.
    """

    axis: str
    level: float = 1.0
    params: Mapping[str, Any] = field(default_factory=dict)
    from_step: int = 0
    to_step: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "params", MappingProxyType(json.loads(canonical_json(dict(self.params)))))

    def __hash__(self) -> int:
        return hash(content_hash(self.to_json()))

    def __reduce__(self) -> tuple[Any, ...]:
        return Perturbation, (self.axis, self.level, dict(self.params), self.from_step, self.to_step)

    def holds(self, step: int) -> bool:
        """Whether it acts on control step ``step``."""
        return self.from_step <= step and (self.to_step is None or step < self.to_step)

    def to_json(self) -> dict[str, Any]:
        """The same as JSON data."""
        return {
            "axis": self.axis,
            "level": self.level,
            "params": dict(self.params),
            "from_step": self.from_step,
            "to_step": self.to_step,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Perturbation":
        """The inverse of :meth:`to_json`."""
        return cls(**data)


def _whole(what: str, received: object) -> int:
    if isinstance(received, bool) or not isinstance(received, int | np.integer):
        raise TypeError(f"{what} is a whole number; received {received!r}")
    return int(received)


@dataclass(frozen=True, slots=True)
class SnapshotRef:
    """A snapshot kept in a recorded run: the run folder, the rollout that kept it, and the step it was kept at."""

    run: str
    rollout: str
    step: int


@dataclass(frozen=True, slots=True)
class Start:
    """What an episode begins from. ``World.reset`` is a function of this and of the key, and of nothing else.

    ``seed`` draws a random initial state (layout, object, goal); ``index`` picks one of a suite's fixed initial
    states; ``snapshot`` begins from a state of a recorded rollout. ``perturbations`` are those that act on the World
    itself; the engine puts them there.
    """

    task: str
    instruction: str = ""
    seed: int | None = None
    index: int | None = None
    snapshot: SnapshotRef | None = None
    perturbations: tuple[Perturbation, ...] = ()

    def __post_init__(self) -> None:
        for name in ("task", "instruction"):
            if not isinstance(getattr(self, name), str):
                raise TypeError(f"{name} of a start is text; received {getattr(self, name)!r}")
        for name in ("seed", "index"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _whole(f"{name} of a start", getattr(self, name)))

    def to_json(self) -> dict[str, Any]:
        """The same as JSON data, defaults left out."""
        data: dict[str, Any] = {"task": self.task, "instruction": self.instruction}
        if self.seed is not None:
            data["seed"] = self.seed
        if self.index is not None:
            data["index"] = self.index
        if self.snapshot is not None:
            data["snapshot"] = dataclasses.asdict(self.snapshot)
        if self.perturbations:
            data["perturbations"] = [p.to_json() for p in self.perturbations]
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Start":
        """The inverse of :meth:`to_json`."""
        fields = dict(data)
        if fields.get("snapshot") is not None:
            fields["snapshot"] = SnapshotRef(**fields["snapshot"])
        fields["perturbations"] = tuple(Perturbation.from_json(p) for p in fields.get("perturbations", ()))
        return cls(**fields)


@dataclass(frozen=True)
class Rollout:
    """A request for one episode: plain data, whose result is a function of it alone.

    A root begins at ``start``. A child (``parent`` and ``branch_step`` set, made by :meth:`branch`) begins at its
    parent's state, World and policy memory, at ``branch_step``. ``seed`` keys every noise stream, except those that
    ``streams`` maps to another seed: the ones a child shares with its parent.
    """

    start: Start
    seed: int
    horizon: int
    world: str = "world"
    policy: str = "policy"
    perturbations: tuple[Perturbation, ...] = ()
    parent: str | None = None
    branch_step: int = 0
    streams: tuple[tuple[str, int], ...] = ()
    snapshot_steps: tuple[int, ...] = ()
    stop_on_success: bool = True
    id: str = field(init=False)

    def __post_init__(self) -> None:
        for name in ("seed", "horizon", "branch_step"):
            object.__setattr__(self, name, _whole(f"{name} of a rollout", getattr(self, name)))
        if self.horizon < 1:
            raise ValueError(f"a rollout needs a horizon of at least one step; received {self.horizon}")
        if self.branch_step < 0 or (self.parent is None and self.branch_step):
            raise ValueError(f"branch_step {self.branch_step} without a parent; use Rollout.branch")
        if self.branch_step >= self.horizon:
            raise ValueError(f"branch_step {self.branch_step} is not before the horizon {self.horizon}")
        object.__setattr__(self, "id", content_hash(self.to_json()))

    def key(self, stream: str) -> Key:
        """The key of a noise stream: the seed it was given in ``streams``, else the rollout's own."""
        return Key(dict(self.streams).get(stream, self.seed))

    def branch(
        self,
        step: int,
        *,
        fresh: Iterable[str] = (),
        seed: int | None = None,
        perturbations: tuple[Perturbation, ...] | None = None,
        horizon: int | None = None,
        policy: str | None = None,
        snapshot_steps: tuple[int, ...] = (),
    ) -> "Rollout":
        """A child that forks from this rollout at ``step``.

        Every noise stream is shared with this rollout, except those of ``STREAMS`` named in ``fresh``, which are keyed
        by ``seed`` (required with ``fresh``). ``perturbations`` are added to this rollout's own. ``horizon`` counts
        from the root's reset. A name that is no stream raises ``ConfigError``.
        """
        if isinstance(fresh, str):
            raise ConfigError(f"fresh takes a list of noise streams; received the text {fresh!r}: pass [{fresh!r}]")
        names = frozenset(fresh)
        for name in names.difference(STREAMS):
            raise unknown("noise stream", name, STREAMS)
        if names and seed is None:
            raise ValueError(f"fresh streams {sorted(names)} need a seed of their own: pass seed=")
        own = dict(self.streams)
        if names:
            assert seed is not None
            own.update({name: Key(seed).integer("branch", name) for name in names})
        return dataclasses.replace(
            self,
            streams=tuple(sorted(own.items())),
            parent=self.id,
            branch_step=step,
            perturbations=self.perturbations + (perturbations or ()),
            horizon=self.horizon if horizon is None else horizon,
            policy=self.policy if policy is None else policy,
            snapshot_steps=snapshot_steps,
        )

    def to_json(self) -> dict[str, Any]:
        """The same as JSON data, without ``id``, which is its hash."""
        return {
            "start": self.start.to_json(),
            "seed": self.seed,
            "horizon": self.horizon,
            "world": self.world,
            "policy": self.policy,
            "perturbations": [p.to_json() for p in self.perturbations],
            "parent": self.parent,
            "branch_step": self.branch_step,
            "streams": [list(pair) for pair in self.streams],
            "snapshot_steps": list(self.snapshot_steps),
            "stop_on_success": self.stop_on_success,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Rollout":
        """The inverse of :meth:`to_json`."""
        fields = dict(data)
        fields["start"] = Start.from_json(fields["start"])
        fields["perturbations"] = tuple(Perturbation.from_json(p) for p in fields["perturbations"])
        fields["streams"] = tuple((name, seed) for name, seed in fields["streams"])
        fields["snapshot_steps"] = tuple(fields["snapshot_steps"])
        return cls(**fields)


@dataclass(frozen=True, slots=True)
class TimeStep:
    """What a World returns for the ``n`` slots it was asked about, in the order asked; every array is fresh.

    ``reward`` [n] float64; ``terminated``, ``truncated``, ``success`` [n] bool (``success``: the task's goal holds
    at this very step). ``signals`` is the simulator's truth (poses [m, quaternion wxyz], contacts, parameters), which
    policies never see. ``failures`` maps a row to the traceback of a simulator that broke in it; the rest of that
    row is undefined. ``lost``: slots (not rows) whose process ended, and their state with it, asked about or not; the
    rows of those that were asked about are among ``failures`` too.
    """

    observation: Observation
    reward: Array
    terminated: Array
    truncated: Array
    success: Array
    signals: Mapping[str, Array] = field(default_factory=dict)
    failures: Mapping[int, str] = field(default_factory=dict)
    lost: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The complete state of one slot, and of all around the engine that its next step depends on.

    ``world`` is the ``snapshot_fingerprint`` of the Worlds that it may be restored into; ``state`` is nested plain data
    (mappings with string keys, lists, tuples, numbers, strings, bytes, numpy arrays). It holds no random state.
    """

    world: str
    state: Mapping[str, Any]

    def to_bytes(self) -> bytes:
        """A self-contained encoding that :meth:`from_bytes` inverts bit for bit in any process."""
        return pack({"format": "simeval-snapshot/1", "world": self.world, "state": dict(self.state)})

    @classmethod
    def from_bytes(cls, data: bytes) -> "Snapshot":
        """The inverse of :meth:`to_bytes`; a foreign or damaged encoding raises ``SnapshotError``."""
        content = unpack(data)
        if not isinstance(content, dict) or content.get("format") != "simeval-snapshot/1":
            raise SnapshotError("these bytes are not a simeval snapshot; write them with Snapshot.to_bytes()")
        world, state = content.get("world"), content.get("state")
        if not isinstance(world, str) or not isinstance(state, dict) or not all(isinstance(key, str) for key in state):
            raise SnapshotError(
                f"a snapshot has the text 'world' and the mapping 'state'; these bytes have {sorted(map(str, content))}"
                f" with world {type(world).__name__} and state {type(state).__name__}: they are damaged"
            )
        return cls(world, state)


@dataclass(frozen=True, slots=True)
class WorldSpec:
    """What a policy may know of a World before it acts: spaces of one slot, ``control_dt`` [s], the tasks, and what its
    pictures and numbers mean."""

    name: str
    observation_space: gymnasium.spaces.Dict
    action_space: gymnasium.spaces.Box
    control_dt: float
    tasks: tuple[str, ...]
    conventions: Conventions = UNDECLARED


def is_picture(space: gymnasium.Space) -> bool:
    """Whether observations of a space are pictures: uint8 [H, W, C]."""
    return space.dtype == np.uint8 and len(space.shape or ()) == 3
