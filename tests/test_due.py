"""Policies that predict chunks: episodes wait to fill their batches, and no picture is drawn that nobody sees."""

import threading
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from policies.chunked import Chunked, ChunkModel, Prediction
from policies.clipped import Clipped
from simeval.episode import Episode
from simeval.noise import StepKey
from simeval.policy import Policy
from simeval.protocols import together
from simeval.rollout import Engine, run
from simeval.store import IMAGES, MemoryStore
from simeval.testing import ToySimulator, toy_policies
from simeval.types import Array, Observation, Rollout, TimeStep
from simeval.world import World
from simeval.wrappers import Delegate


class Seeing(ChunkModel):
    """A chunk model that moves by where its picture is bright, and keeps a record of how many rows it was sent."""

    horizon = 5
    action_dim = 2
    observation_keys = ("image_top", "state")
    fingerprint = "seeing"

    def __init__(self) -> None:
        self.sent: list[int] = []

    def predict(self, observation: Observation, instruction: Sequence[str], keys: Sequence[StepKey]) -> Prediction:
        picture = np.asarray(observation["image_top"], dtype=np.float64)
        self.sent.append(len({key.stream for key in keys}))
        bright = picture.mean(axis=(1, 3)) / 255
        noise = np.stack([key.generator("chunk").standard_normal((self.horizon, 2)) for key in keys])
        left_right = bright[:, :16].mean(axis=1) - bright[:, 16:].mean(axis=1)
        return Prediction((10 * left_right[:, None, None] + 0.3 * noise).astype(np.float32))


class Watched(Delegate):
    """Leaves pictures that are not looked at black, and counts those that are."""

    def __init__(self, world: World):
        super().__init__(world)
        self.drawn = self.stepped = 0

    def step(self, slots: Sequence[int], actions: Array, keys: Sequence[StepKey]) -> TimeStep:
        return self.advance(slots, actions, keys, [True] * len(slots))

    def advance(self, slots: Sequence[int], actions: Array, keys: Sequence[StepKey], looks: Sequence[bool]) -> TimeStep:
        result = self.world.step(slots, actions, keys)
        picture = result.observation["image_top"].copy()
        picture[~np.asarray(looks)] = 0
        self.drawn += sum(looks)
        self.stepped += len(slots)
        return replace(result, observation={**result.observation, "image_top": picture})


def episodes(world: World, policy: Policy, pictures: bool, count: int = 12) -> list[Episode]:
    rollouts = [
        Rollout(world.start(world.tasks[seed % 2], seed), seed=seed, horizon=17 + seed % 20) for seed in range(count)
    ]
    keep = (lambda path: True) if pictures else (lambda path: not path.startswith(IMAGES))
    with Engine({"world": world}, {"world": {"policy": policy}}, MemoryStore(), keep=keep) as engine:
        return engine.run(together(rollouts))


@pytest.mark.parametrize("slots", [1, 4, 7])
def test_pictures_that_nobody_looks_at_are_not_drawn_and_change_nothing(slots: int) -> None:
    policy = Clipped(Chunked(Seeing(), execute=4, batch_size=4))
    plain = episodes(ToySimulator(num_slots=3, cameras=("top",), image_size=32), policy, pictures=True)
    world = Watched(ToySimulator(num_slots=slots, cameras=("top",), image_size=32))
    found = episodes(world, policy, pictures=False)
    for one, other in zip(plain, found, strict=True):
        assert one.status == other.status == "done"
        np.testing.assert_array_equal(one.action, other.action)
        np.testing.assert_array_equal(one.observation["state"], other.observation["state"])
    assert world.stepped == sum(episode.length for episode in found)
    looked = sum(-(-episode.length // 4) for episode in found)
    assert looked - len(found) <= world.drawn <= looked


def test_no_picture_is_drawn_after_the_first_for_a_policy_that_reads_none() -> None:
    world = Watched(ToySimulator(num_slots=4, cameras=("top",), image_size=32))
    found = episodes(world, toy_policies()["expert"], pictures=False)
    assert world.drawn == 0
    assert world.stepped == sum(episode.length for episode in found) > 0


def test_pictures_that_are_recorded_are_all_drawn() -> None:
    world = Watched(ToySimulator(num_slots=4, cameras=("top",), image_size=32))
    found = episodes(world, Clipped(Chunked(Seeing(), execute=4, batch_size=4)), pictures=True)
    assert world.drawn == world.stepped == sum(episode.length for episode in found)


def test_episodes_that_are_due_wait_for_one_another() -> None:
    model = Seeing()
    world = ToySimulator(num_slots=8, cameras=("top",), image_size=32)
    found = episodes(world, Clipped(Chunked(model, execute=4, batch_size=8)), pictures=False, count=40)
    rows = sum(-(-episode.length // 4) for episode in found)
    assert sum(model.sent) == rows
    assert len(model.sent) < 1.3 * rows / 8


class SideBySide(Seeing):
    """Two batches at once; each waits until the other is under way too, or for a moment where there is one only."""

    concurrent = 2

    def __init__(self) -> None:
        super().__init__()
        self.met = 0
        self._both = threading.Barrier(2)

    def predict(self, observation: Observation, instruction: Sequence[str], keys: Sequence[StepKey]) -> Prediction:
        try:
            self._both.wait(0.05)
            self.met += 1
        except threading.BrokenBarrierError:
            self._both.reset()
        return super().predict(observation, instruction, keys)


def test_batches_that_are_predicted_side_by_side_give_the_same_actions() -> None:
    world, model = ToySimulator(num_slots=8, cameras=("top",), image_size=32), SideBySide()
    one, two = (
        episodes(world, Clipped(Chunked(each, execute=4, batch_size=4)), pictures=True) for each in (Seeing(), model)
    )
    assert model.met >= 2
    for a, b in zip(one, two, strict=True):
        assert a.status == b.status == "done"
        np.testing.assert_array_equal(a.action, b.action)


def test_a_policy_that_is_never_due_keeps_no_other_waiting_and_is_kept_by_none() -> None:
    model = Seeing()
    policies = {"seeing": Clipped(Chunked(model, execute=4, batch_size=8)), "expert": toy_policies()["expert"]}
    world = ToySimulator(num_slots=4, cameras=("top",), image_size=32)
    rollouts = [
        Rollout(world.start(world.tasks[0], seed), seed=seed, horizon=20, policy=name)
        for seed in range(8)
        for name in policies
    ]
    found = run(together(rollouts), world, policies)
    assert {episode.status for episode in found} == {"done"}
