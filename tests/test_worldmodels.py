"""World models learned from traces are Worlds like any other."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from policies.noisy import ActionNoise
from simeval.errors import ConfigError
from simeval.evaluation import evaluate
from simeval.noise import Key, StepKey
from simeval.reader import Run
from simeval.testing import ToyExpert, ToySimulator, assert_conforms, check_world
from worldmodels.ensemble import Ensemble
from worldmodels.trainer import WorldModelTrainer
from worldmodels.transitions import TransitionData
from worldmodels.world import LearnedWorld

torch.set_num_threads(1)  # tests run side by side
pytestmark = pytest.mark.slow  # they share a model that is trained first
RECIPE = {"steps": 400, "batch_size": 32, "warmup": 20, "ema": 0.98, "validate_every": 400, "save_every": 400}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    path = tmp_path_factory.mktemp("recorded") / "run"
    evaluate(ToySimulator(8), {"noisy": ActionNoise(ToyExpert(), 0.3)}, episodes=20, path=path)
    return Run(path)


@pytest.fixture(scope="module")
def trained(run: Run, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, float]]:
    folder, told = tmp_path_factory.mktemp("trained") / "ensemble", {}
    trainer = WorldModelTrainer(
        "ensemble", {"members": 3, "width": 32}, "state", RECIPE, validation=0.4, device="cpu", threads=1
    )
    trainer.train([run], folder, ToySimulator(1).spec, lambda step, values: told.update(values))
    return folder, told


def test_an_ensemble_passes_every_sentence_of_the_suite(trained: tuple[Path, dict[str, float]]) -> None:
    assert_conforms(check_world(partial(LearnedWorld, trained[0]), steps=30))


def test_a_step_is_foreseen_better_than_by_standing_still(trained: tuple[Path, dict[str, float]]) -> None:
    assert trained[1]["validation_error"] < 0.8 * trained[1]["persistence_error"]


def test_no_imagined_episode_begins_where_the_model_was_trained(run: Run, trained: tuple[Path, dict]) -> None:
    world = LearnedWorld(trained[0])
    starts = {episode.rollout.start for episode in run}
    used = {start for task in world.tasks for start in world.starts(task, 20, 0)}
    assert used < starts
    with pytest.raises(ConfigError, match="none of the"):
        world.reset([0], [ToySimulator(1).start(world.tasks[0], 99)], [key(0)])


def key(step: int) -> StepKey:
    return Key(3).stream("world").key(step)


def imagined(world: LearnedWorld, steps: int) -> tuple[list[float], list[bool], list[float]]:
    """Rewards, cuts and disagreements."""
    world.reset([0], [world.start(world.tasks[0], 0)], [key(0)])
    action = np.ones((1, *world.action_space.shape), np.float32)
    found = [world.step([0], action, [key(step + 1)]) for step in range(steps)]
    return (
        [float(step.reward[0]) for step in found],
        [bool(step.truncated[0]) for step in found],
        [float(step.signals["disagreement"][0]) for step in found],
    )


def test_episodes_are_cut_and_penalised_as_asked(trained: tuple[Path, dict[str, float]]) -> None:
    reward, cut, apart = imagined(LearnedWorld(trained[0]), 6)
    assert not any(cut)
    assert imagined(LearnedWorld(trained[0], truncate=5), 6)[1] == [False] * 4 + [True] * 2
    punished = imagined(LearnedWorld(trained[0], penalty=2.0), 6)[0]
    np.testing.assert_allclose(punished, np.array(reward) - 2 * np.array(apart), rtol=1e-5, atol=1e-6)
    world = LearnedWorld(trained[0], truncate="disagreement")
    world._trusted = sorted(apart)[2]
    assert imagined(world, 6)[1] == [each > sorted(apart)[2] for each in apart]


def test_a_policy_of_the_simulator_runs_in_the_model(trained: tuple[Path, dict[str, float]]) -> None:
    episodes = evaluate(LearnedWorld(trained[0], num_slots=4), ToyExpert(), episodes=2)
    assert all(episode.status == "done" for episode in episodes)


def test_a_training_goes_on_with_its_own_data_and_split_alone(run: Run, trained: tuple[Path, dict[str, float]]) -> None:
    settings = {"members": 3, "width": 32}
    other = WorldModelTrainer("ensemble", settings, "state", RECIPE, validation=0.3, device="cpu", threads=1)
    with pytest.raises(ConfigError, match="another training"):
        other.train([run], trained[0], ToySimulator(1).spec, lambda step, values: None, resume=True)


def test_a_training_that_was_never_saved_begins_anew(run: Run, tmp_path: Path) -> None:
    recipe = {**RECIPE, "steps": 1}
    trainer = WorldModelTrainer(
        "ensemble", {"members": 2, "width": 8}, "state", recipe, validation=0.4, device="cpu", threads=1
    )
    trainer.train([run], tmp_path, ToySimulator(1).spec, lambda step, values: None, resume=True)
    assert (tmp_path / "model.safetensors").is_file()


def test_what_is_left_of_a_damaged_training_is_refused(run: Run, tmp_path: Path) -> None:
    recipe = {**RECIPE, "steps": 1}
    trainer = WorldModelTrainer(
        "ensemble", {"members": 2, "width": 8}, "state", recipe, validation=0.4, device="cpu", threads=1
    )
    trainer.train([run], tmp_path, ToySimulator(1).spec, lambda step, values: None)
    (tmp_path / "last" / "training.safetensors").write_bytes(b"foo")
    with pytest.raises(ConfigError, match="damaged"):
        trainer.train([run], tmp_path, ToySimulator(1).spec, lambda step, values: None, resume=True)


@pytest.mark.parametrize(
    "setting", [{"validate_every": 0}, {"learning_rate": float("nan")}, {"ema": 2}, {"batch_size": 0}]
)
def test_a_recipe_that_cannot_be_followed_is_refused_by_name(setting: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=f"recipe.{next(iter(setting))}"):
        WorldModelTrainer("ensemble", {"members": 2, "width": 8}, "state", {**RECIPE, **setting})


@pytest.mark.parametrize("truncate", [2.5, True, 0, "never"])
def test_an_episode_is_cut_after_whole_steps_alone(trained: tuple[Path, dict[str, float]], truncate: object) -> None:
    with pytest.raises(ConfigError, match="truncate"):
        LearnedWorld(trained[0], truncate=truncate)  # type: ignore[arg-type]


@pytest.mark.parametrize("batch_size", [1, 2, 7])
def test_validation_is_a_number_whatever_the_batch_size(run: Run, tmp_path: Path, batch_size: int) -> None:
    recipe, told = {**RECIPE, "steps": 1, "batch_size": batch_size}, {}
    trainer = WorldModelTrainer(
        "ensemble", {"members": 5, "width": 8}, "state", recipe, validation=0.4, device="cpu", threads=1
    )
    trainer.train([run], tmp_path, ToySimulator(1).spec, lambda step, values: told.update(values))
    assert np.isfinite(list(told.values())).all()


def test_members_that_are_given_no_rows_leave_the_loss_to_the_others(run: Run) -> None:
    data = TransitionData([run], ["state"], ToySimulator(1).spec, validation=0.4, seed=0, memory=1 << 30)
    network = Ensemble(data.interface, members=5, width=8)
    network.fit(data.all())
    assert torch.isfinite(network.loss(data.all().at([0, 1])))


def test_a_task_that_was_not_recorded_is_named_with_those_that_were(run: Run, tmp_path: Path) -> None:
    trainer = WorldModelTrainer(
        "ensemble", {"members": 2, "width": 8}, "state", RECIPE, tasks=["foo"], device="cpu", threads=1
    )
    with pytest.raises(ConfigError, match=r"unknown task of .* 'foo'; available: push-left"):
        trainer.train([run], tmp_path / "new", ToySimulator(1).spec, lambda step, values: None)
    assert not (tmp_path / "new").exists()
