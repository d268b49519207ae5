"""The conformance suite of a World: sentences that hold for every World, each proved on recorded episodes."""

from collections.abc import Callable, Collection, Sequence
from functools import partial

from simeval.testing import world_exactness as exactness
from simeval.testing import world_interface as interface
from simeval.testing.bench import Bench, WorldFactory
from simeval.testing.checks import Check, Violation, run_check, sentence

_RUNS = "Episodes of random actions run"
_CHECKS: tuple[Callable[[Bench], str], ...] = (
    interface.declares_itself,
    interface.starts_are_plain,
    interface.fits_spaces,
    exactness.repeats,
    exactness.any_slot,
    exactness.any_slot_count,
    exactness.seeds_differ,
    exactness.fork_continues,
    exactness.fork_leaves_parent,
    exactness.fresh_process,
    exactness.restore_returns_step,
    exactness.snapshot_is_value,
    interface.refuses_foreign,
    exactness.no_shared_memory,
    interface.refuses_bad_actions,
    interface.refuses_unknown_task,
    exactness.no_global_random,
    interface.renders,
    interface.closes_twice,
)

WORLD_CHECKS: tuple[str, ...] = (_RUNS, *(sentence(check) for check in _CHECKS))
"""The sentences that ``check_world`` proves, in order."""


def check_world(
    factory: WorldFactory,
    *,
    tasks: Sequence[str] | None = None,
    steps: int = 200,
    seed: int = 0,
    only: Collection[str] = WORLD_CHECKS,
) -> list[Check]:
    """Prove a World: every sentence of the suite, on episodes of random actions of some of its tasks.

    ``tasks`` defaults to the first, the middle and the last. Snapshots are followed for ``steps`` steps, over several
    episodes where one ends sooner. ``only`` picks some of the sentences. A third party's whole test is
    ``assert_conforms(check_world(MyWorld))``.
    """
    world = factory(3)
    try:
        chosen = _default_tasks(world.tasks) if tasks is None else tuple(tasks)
        for task in chosen:
            world.check_task(task)
        bench = Bench(factory, world, chosen, steps, seed)
        first = run_check(_RUNS, bench.record_all)
        bodies = {sentence(check): partial(check, bench) if first.passed else _not_run for check in _CHECKS}
        return [first, *(run_check(name, body) for name, body in bodies.items() if name in only)]
    finally:
        world.close()


def _default_tasks(tasks: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((tasks[0], tasks[len(tasks) // 2], tasks[-1])))


def _not_run() -> str:
    raise Violation("not run, since no episode could be recorded")
