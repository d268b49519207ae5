"""A learned chunked policy's results are those of the rollout alone: any slots, any order, whoever shares the batch."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from learning.words import Vocabulary
from policies.learned import checkpoint
from policies.learned.features import Features
from policies.learned.policy import learned
from policies.vla import VisionLanguageAction
from simeval.episode import Episode
from simeval.protocols import together
from simeval.rollout import run
from simeval.testing import ToySimulator
from simeval.types import Rollout

torch.set_num_threads(1)  # tests run side by side

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device here")
    ),
]


@pytest.fixture(scope="module", params=["flow", "gaussian"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of random weights, whose chunks depend on picture, numbers, sentence and key."""
    features = Features({"image_top": 24}, {"state": 12}, 2, 4, ToySimulator.control_dt)
    torch.manual_seed(0)
    world = ToySimulator(1)
    vocabulary = Vocabulary.of(world.start(task, 0).instruction for task in world.tasks)
    network = VisionLanguageAction(features, vocabulary, request.param, 32, 2, 2, 1, 8)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    rng = np.random.default_rng(0)
    network.number_statistics.fit(rng.normal(size=(50, 12)))
    network.action_statistics.fit(rng.normal(scale=0.3, size=(50, 2)))
    path = tmp_path_factory.mktemp("batching") / request.param
    checkpoint.save(path, network, {})
    return path


def rollouts(count: int, horizon: int = 9) -> list[Rollout]:
    world = ToySimulator(1)
    tasks = world.tasks
    return [
        Rollout(world.start(tasks[i % len(tasks)], i), seed=i, horizon=horizon - i % 3, stop_on_success=False)
        for i in range(count)
    ]


def episodes(folder: Path, device: str, asked: Sequence[Rollout], slots: int) -> dict[str, Episode]:
    policy = learned(folder, execute=3, batch_size=4, device=device)
    done = run(together(asked), ToySimulator(slots, cameras=("top",), image_size=24), policy)
    return {episode.id: episode for episode in done}


def assert_same(one: Episode, other: Episode) -> None:
    assert one.status == "done", one.error
    assert sorted(one.source.paths()) == sorted(other.source.paths())
    for path in one.source.paths():
        np.testing.assert_array_equal(one.source.read(path), other.source.read(path), err_msg=path)


@pytest.mark.parametrize("device", DEVICES)
def test_slots_order_and_neighbours_change_no_bit(folder: Path, device: str) -> None:
    asked = rollouts(7)
    alone = episodes(folder, device, asked, slots=1)
    for slots, order in ((3, asked), (8, asked[::-1])):
        crowd = episodes(folder, device, order, slots)
        for rollout in asked:
            assert_same(alone[rollout.id], crowd[rollout.id])
    few = episodes(folder, device, asked[2:5], slots=2)
    for rollout_id, episode in few.items():
        assert_same(alone[rollout_id], episode)
    chunks = [episode.policy["chunk"][0] for episode in alone.values()]
    assert not any(np.array_equal(a, b) for i, a in enumerate(chunks) for b in chunks[:i]), "the rows are told apart"
