"""The conformance suite of a Policy: sentences that hold for every Policy, each proved on recorded observations."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import gymnasium
import numpy as np

from simeval.codec import pack, unpack
from simeval.errors import ConfigError, SimevalError
from simeval.matching import fit
from simeval.noise import Key, StepKey
from simeval.policy import SNAPSHOT, Memory, Policy, PolicyStep
from simeval.protocols import together
from simeval.rollout import run
from simeval.testing.bench import WorldFactory
from simeval.testing.checks import (
    Check,
    NotTried,
    Violation,
    global_generators,
    require_equal,
    run_check,
    same_bits,
    sentence,
    shown,
    world_stream,
)
from simeval.types import Observation, Rollout
from simeval.world import World, action_problems

PolicyFactory = Callable[[], Policy]
"""``factory()`` builds the policy, not yet bound to a World."""

_BATCH = 4


def check_policy(
    factory: PolicyFactory,
    world_factory: WorldFactory,
    *,
    tasks: Sequence[str] | None = None,
    steps: int = 40,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> list[Check]:
    """Prove a Policy on the observations that it meets in a World, for ``steps`` steps of four episodes.

    The episodes go through ``tasks`` (default: the World's) in turn; ``progress`` is told each sentence before it is
    tried. A third party's whole test is
    ``assert_conforms(check_policy(MyPolicy, MyWorld))``.
    """
    world = world_factory(_BATCH)
    policy = factory()
    try:
        bench = PolicyBench(factory, policy, world, world.tasks if tasks is None else tuple(tasks), steps, seed)
        binds = run_check(sentence(fits_world), partial(fits_world, bench), progress)
        acts = run_check(_ACTS, bench.record_all if binds.passed else _not_run, progress)
        bodies = {sentence(check): partial(check, bench) if acts.passed else _not_run for check in _CHECKS}
        return [binds, acts, *(run_check(name, body, progress) for name, body in bodies.items())]
    finally:
        policy.close()
        world.close()


@dataclass(frozen=True)
class Moment:
    """What the policy was given at one step, and what it did."""

    observation: Observation
    instruction: tuple[str, ...]
    memory: Memory
    keys: tuple[StepKey, ...]
    step: PolicyStep

    def rows(self, rows: Sequence[int]) -> "Moment":
        """The same moment as seen by some of its rows, in the order asked."""
        index = np.asarray(rows)
        step = PolicyStep(
            self.step.action[index],
            take(self.step.memory, index),
            None if self.step.log_prob is None else self.step.log_prob[index],
            None if self.step.entropy is None else self.step.entropy[index],
            None if self.step.chunk is None else self.step.chunk[index],
            take(self.step.extras, index),
        )
        return Moment(
            take(self.observation, index),
            tuple(self.instruction[row] for row in rows),
            take(self.memory, index),
            tuple(self.keys[row] for row in rows),
            step,
        )


class PolicyBench:
    """The Policy under test, and the moments of a recorded run that every check replays."""

    def __init__(
        self, factory: PolicyFactory, policy: Policy, world: World, tasks: Sequence[str], steps: int, seed: int
    ):
        self.factory = factory
        self.policy = policy
        self.world = world
        self.tasks = tasks
        self.steps = steps
        self.seed = seed
        self.moments: list[Moment] = []

    def record_all(self) -> str:
        """Run the policy in the World, keeping copies of all that it was given and gave."""
        seeds = [Key(self.seed).integer("check-policy", row) >> 32 for row in range(_BATCH)]
        starts = [self.world.start(self.tasks[row % len(self.tasks)], seeds[row]) for row in range(_BATCH)]
        slots, streams = range(_BATCH), [world_stream(start) for start in starts]
        result = self.world.reset(slots, starts, [stream.key(0) for stream in streams])
        memory = self.policy.initial_memory(_BATCH)
        for step in range(self.steps):
            observation = shown(self.policy, self.world, slots, result.observation)
            instruction = tuple(start.instruction for start in starts)
            keys = tuple(Key(seed).stream("policy").key(step) for seed in seeds)
            kept = copied(memory)
            acted = self.policy.act(observation, instruction, memory, keys)
            moment = Moment(copied(observation), instruction, kept, keys, replace(acted, memory=copied(acted.memory)))
            self.moments.append(moment)
            if problems := action_problems(self.world.action_space, np.asarray(acted.action), _BATCH):
                raise Violation(f"step {step}: {next(iter(problems.values()))}")
            result = self.world.step(slots, np.asarray(acted.action), [s.key(step + 1) for s in streams])
            memory = acted.memory
            if result.failures or any(result.terminated) or any(result.truncated):
                break
        return f"{len(self.moments)} steps of {_BATCH} episodes: {', '.join(dict.fromkeys(s.task for s in starts))}"


def fits_world(bench: PolicyBench) -> str:
    """It binds to the World, and to none that lacks what it reads."""
    spec = bench.world.spec
    bench.policy = fit(bench.policy, spec)
    if not bench.policy.fingerprint or "\n" in bench.policy.fingerprint:
        raise Violation(f"fingerprint must be one line of text; it is {bench.policy.fingerprint!r}")
    read = [key for key in bench.policy.observation_keys if key != SNAPSHOT]
    if read:
        bare = gymnasium.spaces.Dict({"nothing-it-reads": gymnasium.spaces.Box(0.0, 1.0, (1,))})
        try:
            bench.factory().bind(replace(spec, observation_space=bare))
        except ConfigError:
            return bench.policy.fingerprint
        raise Violation(f"it binds to a World without its observations {read}")
    return bench.policy.fingerprint


def returns_declared_shapes(bench: PolicyBench) -> str:
    """Actions, log-densities, entropies, chunks and memory have one row per episode."""
    shape = bench.world.action_space.shape
    for index, moment in enumerate(bench.moments):
        step = moment.step
        for name in ("log_prob", "entropy"):
            value = getattr(step, name)
            if value is not None and (np.shape(value) != (_BATCH,) or not np.isfinite(value).all()):
                raise Violation(f"step {index}: {name} must be {_BATCH} finite numbers; it is {value}")
        if step.chunk is not None and (step.chunk.shape[:1] != (_BATCH,) or step.chunk.shape[2:] != shape):
            raise Violation(f"step {index}: chunk has shape {step.chunk.shape}, expected [{_BATCH}, H, *{shape}]")
        for name, value in leaves({"memory": step.memory, "extras": step.extras}).items():
            if np.shape(value)[:1] != (_BATCH,):
                raise Violation(f"step {index}: {name} has shape {np.shape(value)}, expected {_BATCH} rows")
    first = bench.moments[0].step
    given = [name for name in ("log_prob", "entropy", "chunk") if getattr(first, name) is not None]
    return f"{', '.join(('action', *given, *first.extras))}; memory {', '.join(leaves(first.memory)) or 'none'}"


def same_key_same_action(bench: PolicyBench) -> str:
    """The same arguments give the same action, in this policy and in a fresh one."""
    fresh = bench.factory().bind(bench.world.spec)
    try:
        for index, moment in enumerate(bench.moments):
            _require_same(moment, bench.policy, f"step {index} asked again")
            _require_same(moment, fresh, f"step {index} asked of a fresh policy")
    finally:
        fresh.close()
    moment = bench.moments[0]
    other = replace(moment, keys=tuple(Key(-1 - row).stream("policy").key(0) for row in range(_BATCH)))
    try:
        keyed = not same_bits(_act(other, bench.policy).action, moment.step.action)
    except SimevalError as error:
        return f"it does not act for other keys: {error}"[:100]
    return "stochastic: another key gives another action" if keyed else "deterministic: it makes no use of its key"


def ignores_neighbours(bench: PolicyBench) -> str:
    """A row does not depend on who shares the batch, in which order, or how many."""
    for index, moment in enumerate(bench.moments):
        for rows in ([3, 1, 0, 2], [0, 1], [2], [1, 3, 0], [0, 0, 3, 3]):
            _require_same(moment.rows(rows), bench.policy, f"step {index}, rows {rows} of {_BATCH}")
    return "1 to 4 rows, reordered"


def reads_when_due(bench: PolicyBench) -> str:
    """Rows that it says are not due act the same whatever they are shown."""
    hidden = 0
    for index, moment in enumerate(bench.moments):
        due = bench.policy.due(copied(moment.memory))
        if due is None:
            continue
        if np.shape(due) != (_BATCH,) or np.asarray(due).dtype != np.bool_:
            raise Violation(f"step {index}: due must be {_BATCH} booleans; it is {due!r}")
        observation = copied(moment.observation)
        for value in observation.values():
            value[~due] = np.zeros_like(value[~due])
        hidden += int((~due).sum())
        _require_same(replace(moment, observation=observation), bench.policy, f"step {index}, not due and shown zeros")
    return f"{hidden} of {_BATCH * len(bench.moments)} rows read nothing" if hidden else "every row reads"


def leaves_arguments(bench: PolicyBench) -> str:
    """Acting does not modify its arguments."""
    for index, moment in enumerate(bench.moments):
        observation, memory = copied(moment.observation), copied(moment.memory)
        bench.policy.act(observation, moment.instruction, memory, moment.keys)
        for name, before, after in (
            ("observation", moment.observation, observation),
            ("memory", moment.memory, memory),
        ):
            require_equal([leaves(before)], [leaves(after)], f"the {name} that was passed to act, step {index}")
    return "observation and memory"


def memory_is_value(bench: PolicyBench) -> str:
    """A fork that kept the memory continues as its parent."""
    middle = len(bench.moments) // 2
    memory: Memory = copied(bench.moments[middle].memory)
    for index, moment in enumerate(bench.moments[middle:], middle):
        acted = _act(replace(moment, memory=memory), bench.policy)
        require_equal([_flat(moment.step)], [_flat(acted)], f"forked at step {middle}, at step {index}")
        memory = acted.memory
    return f"forked at step {middle} of {len(bench.moments)}"


def memory_survives_bytes(bench: PolicyBench) -> str:
    """Memory goes through bytes and back, and continues."""
    size = 0
    for index, moment in enumerate(bench.moments):
        data = pack(copied(moment.memory))
        size = max(size, len(data))
        _require_same(replace(moment, memory=unpack(data)), bench.policy, f"step {index}, with memory from bytes")
    return f"{size} bytes for {_BATCH} episodes"


def begins_alike(bench: PolicyBench) -> str:
    """An initial memory does not depend on how many episodes begin, or on what ran before."""
    many, one = bench.policy.initial_memory(_BATCH), bench.policy.initial_memory(1)
    for row in range(_BATCH):
        require_equal([leaves(one)], [leaves(take(many, np.array([row])))], f"initial memory, row {row}")
    require_equal([leaves(bench.moments[0].memory)], [leaves(many)], "initial memory, asked again")
    return ""


def no_global_random(bench: PolicyBench) -> str:
    """No global random generator is drawn from."""
    for index, moment in enumerate(bench.moments):
        with global_generators(90 + index) as drawn:
            _require_same(moment, bench.policy, f"step {index}, with global generators seeded otherwise")
            if names := drawn():
                raise Violation(f"step {index}: it draws from or seeds {', '.join(names)}")
    return "random, numpy.random and, if loaded, torch"


def runs_in_the_engine(bench: PolicyBench) -> str:
    """Its episodes run in the engine, and are the same in any slot and order."""
    horizon = max(2, min(bench.steps, 20))
    seeds = [Key(bench.seed).integer("check-policy", row) >> 32 for row in range(_BATCH)]
    tasks = [bench.tasks[row % len(bench.tasks)] for row in range(_BATCH)]
    rollouts = [
        Rollout(bench.world.start(task, seed), seed=seed, horizon=horizon)
        for task, seed in zip(tasks, seeds, strict=True)
    ]
    first = run(together(rollouts), bench.world, bench.factory())
    again = run(together(rollouts[::-1]), bench.world, bench.factory())[::-1]
    for one, other in zip(first, again, strict=True):
        if one.status == "error":
            raise Violation(f"an episode of {one.rollout.start.task} ended in an error: {one.error.strip()}")
        if not same_bits(one.action, other.action):
            raise Violation(f"an episode of {one.rollout.start.task} differs when the order of episodes does")
    return f"{len(rollouts)} episodes of up to {horizon} steps"


def closes_twice(bench: PolicyBench) -> str:
    """Closing twice is harmless."""
    policy = bench.factory().bind(bench.world.spec)
    policy.close()
    policy.close()
    return ""


_ACTS = "It acts within the action space"
_CHECKS: tuple[Callable[[PolicyBench], str], ...] = (
    returns_declared_shapes,
    same_key_same_action,
    ignores_neighbours,
    reads_when_due,
    leaves_arguments,
    memory_is_value,
    memory_survives_bytes,
    begins_alike,
    no_global_random,
    runs_in_the_engine,
    closes_twice,
)

POLICY_CHECKS: tuple[str, ...] = (sentence(fits_world), _ACTS, *(sentence(check) for check in _CHECKS))
"""The sentences that ``check_policy`` proves, in order."""


def _not_run() -> str:
    raise NotTried("not run, since it does not act")


def leaves(tree: Mapping[str, Any], prefix: str = "") -> dict[str, np.ndarray]:
    """A nested mapping of arrays as one flat mapping, names joined by ``/``."""
    flat: dict[str, np.ndarray] = {}
    for name, value in tree.items():
        flat.update(leaves(value, f"{prefix}{name}/") if isinstance(value, Mapping) else {f"{prefix}{name}": value})
    return flat


def take(tree: Mapping[str, Any], rows: np.ndarray) -> dict[str, Any]:
    """Some rows of every array of a nested mapping, copied."""
    return {name: take(value, rows) if isinstance(value, Mapping) else value[rows] for name, value in tree.items()}


def copied(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A nested mapping with every array copied."""
    return {name: copied(value) if isinstance(value, Mapping) else np.array(value) for name, value in tree.items()}


def _act(moment: Moment, policy: Policy) -> PolicyStep:
    return policy.act(copied(moment.observation), moment.instruction, copied(moment.memory), moment.keys)


def _flat(step: PolicyStep) -> dict[str, np.ndarray]:
    named = {"action": step.action, "log_prob": step.log_prob, "entropy": step.entropy, "chunk": step.chunk}
    present: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    return leaves({**present, "memory": step.memory, "extras": step.extras})


def _require_same(moment: Moment, policy: Policy, what: str) -> None:
    require_equal([_flat(moment.step)], [_flat(_act(moment, policy))], what)
