"""Objections and perturbations of a World are the same through wrappers and in worker processes."""

from perturbed_worlds import drawn, perturbed, rows_of

from envs.tabletop import Tabletop
from simeval.host import HostedWorld
from simeval.testing import ToySimulator
from simeval.testing.checks import require_equal
from simeval.types import Perturbation
from simeval.wrappers import Delegate


def test_objections_and_perturbed_episodes_come_through_wrappers_and_processes():
    own = Tabletop("stack")
    start = own.start("stack", 1)
    high = perturbed(start, Perturbation("initial_state.robot", 2.0, {"z": 0.4}))
    changed = perturbed(start, drawn("dynamics", 8.0), drawn("initial_state.layout", 2.0))
    hosted = HostedWorld({"_target_": "envs.tabletop.Tabletop", "task": "stack", "num_slots": 1})
    try:
        assert hosted.perturbation_axes == own.perturbation_axes
        for world in (Delegate(own), hosted):
            assert world.objection(high) == own.objection(high) is not None
            assert world.objection(start) is None
            require_equal(rows_of(own, changed, 5), rows_of(world, changed, 5), world.name)
    finally:
        hosted.close()
        own.close()


def test_a_world_objects_to_nothing_unless_it_says_so():
    world = ToySimulator(1)
    assert world.objection(world.start("push-left", 1)) is None
