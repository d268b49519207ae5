"""The rollout engine: runs protocols over Worlds and Policies.

It keeps every slot busy: a slot whose rollout ends takes the next one at once; nobody waits for the slowest. The result
of a rollout is a function of the rollout alone: the same with any number of slots, in any order, fresh or resumed,
whoever shares the batch.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from simeval.episode import Episode
from simeval.errors import unknown
from simeval.lane import plan
from simeval.matching import fit
from simeval.policy import Policy
from simeval.schedule import Protocol, Schedule
from simeval.stage import Stage
from simeval.store import MemoryStore, Store
from simeval.types import Rollout
from simeval.world import World

Policies = Mapping[str, Policy]
"""Policy name -> policy."""


class Engine:
    """Worlds by name, the policies that act in each, and a store for what comes out.

    ``keep`` says which paths of the trace are recorded (``observation/image_front``, ``signals/contact``, …) beside
    actions, rewards and flags, which always are;
    ``on_episode`` hears of every episode that was run (not of those recalled).
    """

    def __init__(
        self,
        worlds: Mapping[str, World],
        policies: Mapping[str, Policies],
        store: Store | None = None,
        *,
        keep: Callable[[str], bool] = lambda path: True,
        on_episode: Callable[[Episode], None] = lambda episode: None,
    ):
        self.store = MemoryStore() if store is None else store
        self._on_episode = on_episode
        self._pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="simeval-compress")
        self._stages = {
            name: Stage(
                world,
                {policy_name: fit(policy, world.spec) for policy_name, policy in policies[name].items()},
                self._pool,
                keep,
                self._deliver,
            )
            for name, world in worlds.items()
        }
        self._schedule: Schedule | None = None

    @property
    def steps(self) -> int:
        """Control steps taken so far, replayed ones included."""
        return sum(stage.steps for stage in self._stages.values())

    def run(self, protocol: Protocol) -> Any:
        """Run a protocol to its end and return what it returns. Episodes that the store recalls are not run again."""
        self._schedule = schedule = Schedule(protocol, self.store.recall, self._submit, self.store.drop)
        wanted = 2 * sum(stage.world.num_slots for stage in self._stages.values())
        while True:
            schedule.advance(wanted)
            if schedule.finished:
                return schedule.result
            busy = [stage.tick() for stage in self._stages.values()]
            if not any(busy):
                raise RuntimeError(f"{schedule.outstanding} rollouts are outstanding and none is running")

    def close(self) -> None:
        """Make the store durable. Worlds and policies are their owner's to close."""
        self._pool.shutdown()
        self.store.close()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _submit(self, rollout: Rollout) -> None:
        if rollout.world not in self._stages:
            raise unknown("world", rollout.world, self._stages)
        stage = self._stages[rollout.world]
        if rollout.policy not in stage.policies:
            raise unknown(f"policy of world {rollout.world!r}", rollout.policy, stage.policies)
        program = plan(rollout, stage.world, self.store.recall)
        self.store.request(rollout)
        stage.submit(program)

    def _deliver(self, episode: Episode) -> None:
        self.store.record(episode)
        self._on_episode(episode)
        assert self._schedule is not None
        self._schedule.deliver(episode)


def run(
    protocol: Protocol,
    world: World,
    policies: Policy | Policies,
    store: Store | None = None,
) -> Any:
    """Run a protocol on one World, named ``"world"``, with one policy, named ``"policy"``, or several by name."""
    named = {"policy": policies} if isinstance(policies, Policy) else policies
    with Engine({"world": world}, {"world": named}, store) as engine:
        return engine.run(protocol)
