"""Models that learn from windows of frames: the windows, the joint-embedding model, and frames that lie apart."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from envs.balls.world import Balls
from policies.basic import Uniform
from simeval.errors import ConfigError
from simeval.evaluation import evaluate
from simeval.noise import Key, StepKey
from simeval.reader import Run
from simeval.testing import assert_conforms, check_world
from worldmodels.checkpoint import CHECKPOINTS
from worldmodels.controls import Corrected
from worldmodels.horizon import horizon_errors
from worldmodels.interface import NUMBERS
from worldmodels.latent import sigreg
from worldmodels.trainer import WorldModelTrainer
from worldmodels.windows import WindowData
from worldmodels.world import LearnedWorld

torch.set_num_threads(1)  # tests run side by side
SETTINGS = {"dim": 10, "width": 32, "layers": 1, "heads": 2, "history": 2, "channels": 8}
RECIPE: dict[str, Any] = {
    **{"steps": 1200, "batch_size": 32, "learning_rate": 0.003, "warmup": 20, "ema": 0.9, "rollout": 2},
    **{"directions": 32, "regularisation": 5.0, "validate_every": 1200, "save_every": 1200},
}


def balls(num_slots: int = 1) -> Balls:
    return Balls(num_slots, balls=1, cameras="side", image_size=16)


def trainer(
    observation: list[str], recipe: dict[str, Any] | None = None, skip: int = 1, **settings: Any
) -> WorldModelTrainer:
    return WorldModelTrainer(
        "latent",
        {**SETTINGS, **settings},
        observation,
        {**RECIPE, **(recipe or {})},
        frame_skip=skip,
        validation=0.3,
        device="cpu",
        threads=1,
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    path = tmp_path_factory.mktemp("recorded") / "run"
    evaluate(balls(8), Uniform(), episodes=60, horizon=30, path=path)
    return Run(path)


def learned(run: Run, folder: Path, chosen: WorldModelTrainer) -> dict[str, float]:
    told: dict[str, float] = {}
    chosen.train([run], folder, balls().spec, lambda step, values: told.update(values))
    return told


@pytest.fixture(scope="module")
def numbers(run: Run, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, float]]:
    """A model of the state, told the gravity, whose frames are two steps apart."""
    folder = tmp_path_factory.mktemp("trained") / "numbers"
    return folder, learned(run, folder, trainer(["state", "gravity"], skip=2, parameter="gravity"))


@pytest.fixture(scope="module")
def pictures(run: Run, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, float]]:
    """A model that sees pictures alone, and says the state from its latent."""
    folder = tmp_path_factory.mktemp("trained") / "pictures"
    return folder, learned(run, folder, trainer(["image_side", "state"], {"steps": 40}, reads=["image_side"]))


def key(step: int) -> StepKey:
    return Key(3).stream("world").key(step)


def window_data(run: Run, history: int, ahead: int, skip: int) -> WindowData:
    return WindowData(
        [run],
        ["state"],
        balls().spec,
        history=history,
        ahead=ahead,
        frame_skip=skip,
        validation=0.3,
        seed=0,
        memory=2**30,
    )


def test_a_window_holds_the_frames_and_actions_of_its_episode(run: Run) -> None:
    data = window_data(run, history=2, ahead=2, skip=3)
    episode = data.training[0]
    window = data.batch([data.decoded(episode)], [(0, 7)])
    state = np.asarray(episode.observation["state"])
    np.testing.assert_array_equal(window.seen[NUMBERS][0], state[[4, 7, 10, 13]])
    np.testing.assert_array_equal(window.action[0], np.reshape(episode.action[4:13], (3, 6)))
    np.testing.assert_allclose(window.reward[0], np.reshape(episode.reward[4:13], (3, 3)).sum(1), rtol=1e-6)
    assert window.real.all()


def test_before_an_episode_its_first_frame_stands_still_and_after_it_its_last(run: Run) -> None:
    data = window_data(run, history=3, ahead=2, skip=2)
    episode = data.training[0]
    state, last = np.asarray(episode.observation["state"]), episode.length
    window = data.batch([data.decoded(episode)], [(0, 0), (0, last - 1)])
    np.testing.assert_array_equal(window.seen[NUMBERS][0], state[[0, 0, 0, 2, 4]])
    np.testing.assert_array_equal(window.action[0, :2], 0)
    np.testing.assert_array_equal(window.seen[NUMBERS][1], state[[last - 5, last - 3, last - 1, last, last]])
    assert window.real.tolist() == [[False, False, True, True], [True, True, False, False]]


def test_latents_that_collapse_or_stretch_are_less_normal_than_normal_ones() -> None:
    draws = torch.Generator().manual_seed(0)
    rows, directions = torch.randn(1, 512, 8, generator=draws), torch.randn(8, 256, generator=draws)
    normal = sigreg(rows, directions)
    for wrong in (0 * rows, 0.3 * rows, 3 * rows, rows + 1, rows * torch.eye(8)[0], rows.sign()):
        assert sigreg(wrong, directions) > 2 * normal


def test_the_statistic_of_normal_rows_has_its_expectation() -> None:
    draws = torch.Generator().manual_seed(1)
    found = sigreg(torch.randn(400, 64, 16, generator=draws), torch.randn(16, 64, generator=draws))
    # Of n rows, n E|mean exp(itx) - exp(-t²/2)|² = 1 - exp(-t²), here over all t under the window.
    expected = 2 * (np.sqrt(np.pi / 2) - np.sqrt(np.pi / 6))
    assert float(found) == pytest.approx(expected, rel=0.05)


@pytest.mark.slow
def test_a_model_of_numbers_passes_every_sentence_of_the_suite(numbers: tuple[Path, dict[str, float]]) -> None:
    assert_conforms(check_world(partial(LearnedWorld, numbers[0]), steps=12))


@pytest.mark.slow
def test_a_model_of_pictures_passes_every_sentence_of_the_suite(pictures: tuple[Path, dict[str, float]]) -> None:
    assert_conforms(check_world(partial(LearnedWorld, pictures[0], batch_size=4), steps=12))


@pytest.mark.slow
def test_a_model_that_begins_in_its_simulator_passes_every_sentence_of_the_suite(
    pictures: tuple[Path, dict[str, float]],
) -> None:
    assert_conforms(check_world(partial(begun_in_the_simulator, pictures[0]), steps=12))


def begun_in_the_simulator(checkpoint: Path, num_slots: int = 4) -> LearnedWorld:
    return LearnedWorld(checkpoint, num_slots=num_slots, batch_size=4, simulator=balls(num_slots), context=3)


@pytest.mark.slow
def test_frames_are_foreseen_better_than_by_standing_still(numbers: tuple[Path, dict[str, float]]) -> None:
    told = numbers[1]
    assert told["validation_error"] < 0.8 * told["persistence_error"]
    assert told["validation_error_2"] < 0.8 * told["persistence_error_2"]


@pytest.mark.slow
def test_the_last_frame_is_shown_until_all_actions_of_the_next_are_given(
    numbers: tuple[Path, dict[str, float]],
) -> None:
    world = LearnedWorld(numbers[0])
    first = world.reset([0], [world.start("bounce", 0)], [key(0)])
    action = np.ones((1, 2), np.float32)
    steps = [world.step([0], action, [key(step)]) for step in range(1, 5)]
    shown = [step.observation["state"][0] for step in (first, *steps)]
    np.testing.assert_array_equal(shown[1], shown[0])
    np.testing.assert_array_equal(shown[3], shown[2])
    assert (shown[2] != shown[1]).any()
    assert (shown[4] != shown[3]).any()
    assert [step.reward[0] == 0 for step in steps] == [True, False, True, False]
    assert {float(step.observation["gravity"][0, 0]) for step in steps} == {float(first.observation["gravity"][0, 0])}


@pytest.mark.slow
def test_the_simulator_leads_for_as_many_frames_as_asked(pictures: tuple[Path, dict[str, float]]) -> None:
    world, truth = begun_in_the_simulator(pictures[0]), balls()
    start = world.start("bounce", 5)
    seen = [world.reset([2], [start], [key(0)]), truth.reset([0], [start], [key(0)])]
    same = [np.array_equal(*(step.observation["image_side"] for step in seen))]
    for step in range(1, 5):
        action = np.full((1, 2), 0.5, np.float32)
        seen = [world.step([2], action, [key(step)]), truth.step([0], action, [key(step)])]
        same.append(np.array_equal(*(found.observation["image_side"] for found in seen)))
    assert same == [True, True, True, False, False]


def told_the_truth(checkpoint: Path, num_slots: int = 4) -> Corrected:
    return Corrected(checkpoint, num_slots=num_slots, batch_size=4, simulator=balls(num_slots))


@pytest.mark.slow
def test_a_model_that_is_told_the_truth_passes_every_sentence_of_the_suite(
    numbers: tuple[Path, dict[str, float]],
) -> None:
    assert_conforms(check_world(partial(told_the_truth, numbers[0]), steps=12))


@pytest.mark.slow
def test_a_model_that_is_told_the_truth_foresees_each_frame_from_true_ones(
    pictures: tuple[Path, dict[str, float]],
) -> None:
    def shown(world: LearnedWorld) -> list[np.ndarray]:
        world.reset([0], [world.start("bounce", 5)], [key(0)])
        action = np.full((1, 2), 0.5, np.float32)
        return [world.step([0], action, [key(step)]).observation["state"] for step in range(1, 5)]

    corrected = shown(told_the_truth(pictures[0]))
    for frames in range(1, 5):
        led = LearnedWorld(pictures[0], num_slots=4, batch_size=4, simulator=balls(4), context=frames)
        np.testing.assert_array_equal(corrected[frames - 1], shown(led)[frames - 1])


@pytest.mark.slow
def test_a_model_that_is_shown_the_truth_errs_as_at_the_first_frame(run: Run, numbers: tuple[Path, dict]) -> None:
    model = CHECKPOINTS.load(numbers[0])
    data = WindowData(
        [run],
        ["state", "gravity"],
        balls().spec,
        history=2,
        ahead=5,
        frame_skip=2,
        validation=0.3,
        seed=0,
        memory=2**30,
    )
    window = next(data.validation_batches(64))
    errors = horizon_errors(model, window, 2, torch.ones(data.interface.number_dim))
    imagined, corrected = (errors.mean(arm, NUMBERS) for arm in ("imagined", "corrected"))
    np.testing.assert_array_equal(imagined[0], corrected[0])
    assert imagined[-1] > 1.2 * corrected[-1]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"reads": ["foo"]}, "foo"),
        ({"parameter": "foo"}, "foo"),
        ({"width": 33}, "multiple of heads"),
        ({"depth": 3}, "depth"),
        ({"history": 0}, "history"),
    ],
)
def test_settings_that_no_model_can_have_are_refused_by_name(
    run: Run, tmp_path: Path, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        learned(run, tmp_path, trainer(["state"], **settings))


@pytest.mark.parametrize("setting", [{"rollout": 0}, {"discount": 2.0}, {"directions": 0.5}, {"regularisation": "a"}])
def test_a_recipe_that_cannot_be_followed_is_refused_by_name(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"recipe.{next(iter(setting))}"):
        trainer(["state"], setting)


def test_pictures_that_cannot_be_halved_are_refused(tmp_path: Path) -> None:
    world = Balls(2, balls=1, cameras="side", image_size=20)
    evaluate(world, Uniform(), episodes=4, horizon=5, path=tmp_path / "run")
    with pytest.raises(ConfigError, match="20 x 20"):
        trainer(["image_side"]).train([Run(tmp_path / "run")], tmp_path / "m", world.spec, lambda step, values: None)
