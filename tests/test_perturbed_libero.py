"""Perturbations of LIBERO, in its own interpreter: exact, over with their episode, and objected to where unfair."""

from dataclasses import replace

import numpy as np
from perturbed_worlds import LOOKS, check_all_at_once, check_identity, drawn, mean_distance, perturbed, rows_of
from test_libero import in_libero, libero

from simeval.noise import Key
from simeval.testing.checks import require_equal
from simeval.types import Perturbation

CAMERA = "image_agentview"


@in_libero
def test_perturbations_of_libero():
    with libero("libero_spatial", 0, num_slots=2, cameras=["agentview"]) as world:
        start = world.starts(world.tasks[0], 1, 0)[0]
        for axis in sorted(world.perturbation_axes):
            check_identity(world, start, axis, 2)
        check_all_at_once(world, start, 4, sorted(world.perturbation_axes - {"appearance"}))
        plain = rows_of(world, start, 2)
        for axis in LOOKS:
            changed = rows_of(world, perturbed(start, drawn(axis, 8.0)), 2)
            for before, after in zip(plain, changed, strict=True):
                assert (before[f"observation/{CAMERA}"] != after[f"observation/{CAMERA}"]).any()
            bare = [[{k: v for k, v in row.items() if CAMERA not in k} for row in rows] for rows in (plain, changed)]
            require_equal(*bare, axis)
        moved = replace(start, perturbations=(Perturbation("initial_state.robot", 2.0, {"x": 0.03, "z": -0.04}),))
        hand = world.reset([0], [moved], [Key(0).stream("world").key(0)]).signals["eef"][0, :3]
        np.testing.assert_allclose(hand - plain[0]["signals/eef"][:3], [0.03, 0.0, -0.04], atol=1e-3)
        assert world.objection(moved) is None
        far = replace(start, perturbations=(Perturbation("initial_state.robot", 8.0, {"x": 1.0}),))
        assert "cannot begin at" in world.objection(far)


@in_libero
def test_perturbations_of_libero_go_farther_at_a_higher_level():
    with libero("libero_spatial", 0, num_slots=1, cameras=["agentview"]) as world:
        start = world.starts(world.tasks[0], 1, 0)[0]
        for axis in ("camera", "lighting"):
            little, much = (mean_distance(world, start, axis, level, CAMERA, 0, 3) for level in (2.0, 8.0))
            assert much > little > 0, axis
        little, much = (mean_distance(world, start, "appearance", level, CAMERA, 0, 1) for level in (2.0, 8.0))
        assert much > little > 0, "appearance"
        for axis, steps in (("initial_state.robot", 0), ("initial_state.layout", 0), ("dynamics", 25)):
            little, much = (mean_distance(world, start, axis, level, "state", steps, 3) for level in (2.0, 8.0))
            assert much > little > 0, axis
