"""The conformance suite of a World: sentences that hold for every World, each proved on recorded episodes."""

from collections.abc import Callable, Collection, Sequence
from functools import partial

from simeval.policy import Policy
from simeval.testing import world_exactness as exactness
from simeval.testing import world_interface as interface
from simeval.testing import world_process as process
from simeval.testing.bench import Bench, WorldFactory
from simeval.testing.checks import Check, NotTried, run_check, sentence
from simeval.testing.process import stop_script
from simeval.testing.world_perturbations import perturbations_act, perturbations_end
from simeval.types import Perturbation

_RUNS = "Episodes of random actions run"
_CHECKS: tuple[Callable[[Bench], str], ...] = (
    interface.declares_itself,
    interface.starts_are_plain,
    process.starts_abroad,
    interface.fits_spaces,
    exactness.repeats,
    exactness.any_slot,
    exactness.any_slot_count,
    exactness.seeds_differ,
    exactness.fork_continues,
    exactness.fork_leaves_parent,
    process.fresh_process,
    exactness.restore_returns_step,
    exactness.snapshot_is_value,
    interface.refuses_foreign,
    exactness.no_shared_memory,
    interface.refuses_bad_actions,
    interface.refuses_unknown_task,
    exactness.no_global_random,
    perturbations_act,
    perturbations_end,
    interface.advances_unseen,
    interface.renders,
    interface.closes_twice,
)

_WITHOUT_EPISODES = (interface.declares_itself, interface.starts_are_plain)
"""Checks that are tried even where no episode could be recorded, so that all that is wrong is said at once."""

WORLD_CHECKS: tuple[str, ...] = (_RUNS, *(sentence(check) for check in _CHECKS))
"""The sentences that ``check_world`` proves, in order."""


def check_world(
    factory: WorldFactory,
    *,
    tasks: Sequence[str] | None = None,
    steps: int = 200,
    seed: int = 0,
    policy: Callable[[], Policy] | None = None,
    perturbations: Sequence[Perturbation] = (),
    only: Collection[str] = WORLD_CHECKS,
    progress: Callable[[str], None] | None = None,
) -> list[Check]:
    """Prove a World: every sentence of the suite, on episodes of random actions of some of its tasks.

    ``tasks`` defaults to the first, the middle and the last. Snapshots are followed for ``steps`` steps, over several
    episodes where one ends sooner. Random actions seldom reach a goal: with ``policy``, every sentence is also proved
    on an episode of each task under ``policy()``, through the goal and ten steps beyond. ``perturbations`` are those to
    try of the axes that the World applies itself; of others, strong ones of the axes in docs/perturbations.md, and of a
    World's own, levels 2 and 0.5 without parameters. ``only`` picks some of the sentences; ``progress`` is told
    each before it is tried. A third party's whole test is ``assert_conforms(check_world(MyWorld))``.
    """
    stop_script()
    world = factory(3)
    try:
        chosen = default_tasks(world.tasks) if tasks is None else tuple(tasks)
        for task in chosen:
            world.check_task(task)
        bench = Bench(factory, world, chosen, steps, seed, policy, perturbations)
        first = run_check(_RUNS, bench.record_all, progress)
        tried = _CHECKS if first.passed else _WITHOUT_EPISODES
        bodies = {sentence(check): partial(check, bench) if check in tried else _not_run for check in _CHECKS}
        return [first, *(run_check(name, body, progress) for name, body in bodies.items() if name in only)]
    finally:
        world.close()


def default_tasks(tasks: Sequence[str]) -> tuple[str, ...]:
    """The first, the middle and the last."""
    return tuple(dict.fromkeys((tasks[0], tasks[len(tasks) // 2], tasks[-1])))


def _not_run() -> str:
    raise NotTried("not run, since no episode could be recorded")
