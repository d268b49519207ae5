"""Snapshots belong to the dynamics of a World, not to what is shown of it."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from envs.metaworld import MetaWorld
from envs.tabletop import Tabletop
from simeval import Snapshot, World
from simeval.errors import SnapshotError
from simeval.noise import Stream
from simeval.testing import ToySimulator

WORLDS = [
    pytest.param(partial(Tabletop, "push"), "front", id="tabletop"),
    pytest.param(partial(MetaWorld, "push-v3"), "corner2", id="metaworld"),
    pytest.param(ToySimulator, "top", id="toy"),
]


@pytest.mark.parametrize(("make", "camera"), WORLDS)
def test_a_state_recorded_without_cameras_can_be_seen_in_a_world_that_has_some(
    make: Callable[..., World], camera: str
) -> None:
    blind, seeing = make(num_slots=1), make(num_slots=2, cameras=(camera,))
    stream = Stream(3, "world")
    for world in (blind, seeing):
        world.reset([0], [world.start(world.tasks[0], 3)], [stream.key(0)])
    action = np.full((1, *blind.action_space.shape), 0.5, dtype=np.float32)
    for step in range(5):
        blind.step([0], action, [stream.key(step + 1)])
        seen = seeing.step([0], action, [stream.key(step + 1)])
    (snapshot,) = blind.snapshot([0])
    restored = seeing.restore([1], [Snapshot.from_bytes(snapshot.to_bytes())])
    assert f"image_{camera}" in restored.observation
    for key, value in seen.observation.items():
        np.testing.assert_array_equal(restored.observation[key], value, err_msg=key)
    other = Snapshot(blind.fingerprint + " and more", snapshot.state)
    with pytest.raises(SnapshotError, match=r"was taken in \[.* and more\] and cannot be restored in"):
        seeing.restore([1], [other])
    blind.close()
    seeing.close()
