"""What a policy server answers, whatever carries the messages: an observation comes in, actions go out."""

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import gymnasium
import numpy as np

from simeval.errors import ConfigError, SimevalError, UnsupportedError, unknown
from simeval.matching import fit
from simeval.noise import NOISE_LAYOUT, Key, StepKey, Stream
from simeval.policy import Memory, Policy, PolicyStep, memory_row, stack_memory
from simeval.serve.messages import MessageError, read_key
from simeval.types import Observation, WorldSpec
from simeval.world import World

PROTOCOL = "simeval-serve/1"
"""What the metadata of our servers say, and other servers' do not."""

Names = Mapping[str, str | Mapping[str, int]]
"""A policy's observation key -> its name in a message, or the names and sizes of its parts, one after the other."""


@dataclass(frozen=True, slots=True)
class Field:
    """One entry of an observation message: elements ``begin:end`` of observation ``key``, or (no end) all of it."""

    name: str
    key: str
    shape: tuple[int, ...]
    dtype: np.dtype
    begin: int = 0
    end: int | None = None

    def __str__(self) -> str:
        return f"{self.name!r} {self.dtype} {self.shape}"


@dataclass(slots=True)
class Session:
    """What a server remembers for a client that does not carry the policy's memory itself: one episode."""

    stream: Stream
    memory: Memory
    step: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """One observation to act on. ``session`` keeps the new memory; without one it goes back with the answer."""

    observation: Mapping[str, np.ndarray]
    instruction: str
    key: StepKey
    memory: Memory
    session: Session | None


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no answer: one line, or the policy's traceback."""

    text: str


Answer = dict[str, Any] | Failure
"""A result map, or why there is none."""


class PolicyService:
    """Answers observations with one policy, bound to a World's spaces.

    A request that brings ``memory`` (a row, as the metadata show it) is one step of the policy: the answer holds
    ``actions`` [1, A], the new ``memory``, and ``log_prob``, ``entropy``, ``chunk``, ``extras`` where the policy gives
    them. One without is openpi's: a policy that predicts chunks answers with a new chunk, ``actions`` [H, A], any other
    steps with the memory of the client's session. ``noise_key`` keys the noise; without one it comes from ``seed``, the
    session's number and its step.

    ``horizon`` H is 0 where the policy does not simply execute what it predicts (it has no chunk, or adds noise).
    """

    def __init__(
        self, policy: Policy, spec: WorldSpec, trial: tuple[Observation, str], names: Names | None = None, seed: int = 0
    ):
        self.policy = policy
        self.spec = spec
        self.fields = _fields(policy, spec, names or {})
        self._seed = seed
        self._sessions = count(1)
        self._initial = memory_row(policy.initial_memory(1), 0)
        shown, instruction = trial
        observation = {key: shown[key] for key in policy.observation_keys}
        first = policy.act(observation, [instruction], policy.initial_memory(1), [Key(seed).stream("trial").key(0)])
        self.horizon = _horizon(first, spec.action_space)

    @classmethod
    def of(cls, policy: Policy, world: World, names: Names | None = None, seed: int = 0) -> "PolicyService":
        """``policy`` bound to ``world``, and tried once on its first task: one that cannot act does not serve."""
        bound = fit(policy, world.spec)
        start = world.start(world.tasks[0], seed)
        result = world.reset([0], [start], [Key(seed).stream("world").key(0)])
        if result.failures:
            raise SimevalError(f"world {world.name!r} cannot be reset: {next(iter(result.failures.values()))}")
        return cls(bound, world.spec, (result.observation, start.instruction), names, seed)

    @property
    def remembers(self) -> bool:
        """Whether an answer depends on the session's earlier requests."""
        return not self.horizon and bool(self._initial)

    @property
    def metadata(self) -> dict[str, Any]:
        """What a client may know: the policy, what it reads and under which names, its actions, its initial memory."""
        return {
            "protocol": PROTOCOL,
            "policy": self.policy.fingerprint,
            "noise_key": NOISE_LAYOUT,
            "observation": {
                field.name: {
                    "key": field.key,
                    "begin": field.begin,
                    "end": field.end,
                    "shape": list(field.shape),
                    "dtype": field.dtype.str,
                }
                for field in self.fields
            },
            "action_dim": int(np.prod(self.spec.action_space.shape)),
            "horizon": self.horizon,
            "control_dt": self.spec.control_dt,
            "conventions": self.policy.conventions.to_json(),
            "memory": self._initial,
        }

    def session(self) -> Session:
        """A new client, or a new episode of one."""
        return Session(Key(self._seed).stream(f"session-{next(self._sessions)}"), self._initial)

    def read(self, message: Any, session: Session, prompt: str = "prompt") -> Request:
        """The request in a message; ``MessageError`` says what is missing or does not fit."""
        if not isinstance(message, Mapping):
            raise MessageError(f"an observation is a map; received a {type(message).__name__}")
        lacking = [name for name in (*(field.name for field in self.fields), prompt) if name not in message]
        if lacking:
            raise MessageError(
                f"the observation lacks {', '.join(map(repr, lacking))}; this policy reads "
                f"{', '.join(map(str, self.fields))} and the text {prompt!r}; received: {', '.join(map(str, message))}"
            )
        if not isinstance(message[prompt], str):
            raise MessageError(f"{prompt!r} is text; received a {type(message[prompt]).__name__}")
        parts: dict[str, list[np.ndarray]] = {}
        for field in self.fields:
            parts.setdefault(field.key, []).append(_value(field, message[field.name]))
        observation = {key: part[0] if len(part) == 1 else np.concatenate(part) for key, part in parts.items()}
        given = message.get("memory")
        if given is not None:
            _check_memory(self._initial, given, "memory")
        key = session.stream.key(session.step) if "noise_key" not in message else read_key(message["noise_key"])
        session.step += 1
        memory = given if given is not None else self._initial if self.horizon else session.memory
        return Request(observation, message[prompt], key, memory, session if given is None else None)

    def answer(self, requests: Sequence[Request]) -> list[Answer]:
        """An answer to each; where the policy fails with several, it is asked with each alone, and only one fails."""
        keys = self.policy.observation_keys
        try:
            step = self.policy.act(
                {key: np.stack([request.observation[key] for request in requests]) for key in keys},
                [request.instruction for request in requests],
                stack_memory([request.memory for request in requests]),
                [request.key for request in requests],
            )
            return [self._result(step, row, request) for row, request in enumerate(requests)]
        except Exception:
            if len(requests) == 1:
                return [Failure(traceback.format_exc())]
            return [self.answer([request])[0] for request in requests]

    def _result(self, step: PolicyStep, row: int, request: Request) -> dict[str, Any]:
        action = np.asarray(step.action)[row][None]
        if request.session is not None:
            if self.horizon:
                return {"actions": np.asarray(step.chunk)[row]}
            request.session.memory = memory_row(step.memory, row)
            return {"actions": action}
        known = {"log_prob": step.log_prob, "entropy": step.entropy, "chunk": step.chunk}
        result = {name: np.asarray(value)[row] for name, value in known.items() if value is not None}
        extras = {name: np.asarray(value)[row] for name, value in step.extras.items()}
        return {"actions": action, "memory": memory_row(step.memory, row), **result, "extras": extras}


def _fields(policy: Policy, spec: WorldSpec, names: Names) -> tuple[Field, ...]:
    for key in names:
        if key not in policy.observation_keys:
            raise unknown("observation key of the policy (in names)", key, policy.observation_keys)
    fields: list[Field] = []
    for key in policy.observation_keys:
        if key not in spec.observation_space.spaces:
            raise UnsupportedError(f"this policy reads {key!r}, which no message carries; it cannot be served")
        space = spec.observation_space[key]
        assert isinstance(space, gymnasium.spaces.Box)
        name, dtype = names.get(key, key), np.dtype(space.dtype)
        if isinstance(name, str):
            fields.append(Field(name, key, space.shape, dtype))
            continue
        if not isinstance(name, Mapping):
            raise ConfigError(f"names gives {key!r} a name, or names and sizes of its parts; received {name!r}")
        if len(space.shape) != 1 or sum(name.values()) != space.shape[0]:
            raise ConfigError(
                f"names gives parts {dict(name)} of {key!r}, whose shape is {space.shape}; they must add up"
            )
        begin = 0
        for part, size in name.items():
            fields.append(Field(part, key, (size,), dtype, begin, begin + size))
            begin += size
    named = [field.name for field in fields]
    if len(set(named)) != len(named):
        raise ConfigError(f"names gives one name to several observations: {', '.join(named)}")
    return tuple(fields)


def _horizon(first: PolicyStep, space: gymnasium.spaces.Box) -> int:
    if first.chunk is None:
        return 0
    chunk = np.asarray(first.chunk)
    executed = np.clip(chunk[:, 0], space.low, space.high).astype(space.dtype)
    return chunk.shape[1] if np.array_equal(executed, np.asarray(first.action).astype(space.dtype)) else 0


def _array(given: Any, what: str) -> np.ndarray:
    try:
        return np.asarray(given)
    except ValueError as error:
        raise MessageError(f"{what} is no array ({error})") from error


def _value(field: Field, given: Any) -> np.ndarray:
    value = _array(given, f"observation {field.name!r}")
    if value.shape != field.shape or not np.can_cast(value.dtype, field.dtype, "same_kind"):
        raise MessageError(f"observation {field.name!r} is {value.dtype} {value.shape}; expected {field}")
    return value.astype(field.dtype)


def _check_memory(expected: Memory, given: Any, where: str) -> None:
    """Raise ``MessageError`` unless ``given`` has the parts, shapes and dtypes of ``expected``."""
    if not isinstance(given, Mapping) or given.keys() != expected.keys():
        parts = sorted(map(str, given)) if isinstance(given, Mapping) else type(given).__name__
        raise MessageError(f"{where} has {parts}; expected the parts of the metadata's: {sorted(expected)}")
    for name, value in expected.items():
        if isinstance(value, Mapping):
            _check_memory(value, given[name], f"{where}/{name}")
            continue
        array = _array(given[name], f"{where}/{name}")
        if array.dtype != value.dtype or array.shape != value.shape:
            raise MessageError(
                f"{where}/{name} is {array.dtype} {array.shape}; expected {value.dtype} {value.shape}, see the metadata"
            )
