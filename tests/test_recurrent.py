"""The recurrent state-space model: what is drawn, what is remembered, and how well it foresees."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from learned_balls import begun_in_the_simulator, first_window, key, learned, recorded, window_data

from simeval.errors import ConfigError
from simeval.reader import Run
from simeval.testing import assert_conforms, check_world
from worldmodels.interface import NUMBERS
from worldmodels.recurrent import Recurrent, RecurrentRecipe, divergence
from worldmodels.world import LearnedWorld

torch.set_num_threads(1)  # tests run side by side
SETTINGS = {"dim": 8, "width": 48, "history": 2, "channels": 8}
RECIPE: dict[str, Any] = {
    **{"steps": 800, "batch_size": 32, "learning_rate": 0.003, "warmup": 20, "ema": 0.9, "rollout": 4},
    **{"validate_every": 800, "save_every": 800, "clip": 10.0},
}
ACTION = np.ones((1, 2), np.float32)

Trained = tuple[Path, dict[str, float]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return recorded(tmp_path_factory.mktemp("recorded") / "run")


@pytest.fixture(scope="module")
def numbers(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A model of the state."""
    folder = tmp_path_factory.mktemp("trained") / "numbers"
    return folder, learned("recurrent", SETTINGS, ["state"], RECIPE, run, folder)


@pytest.fixture(scope="module")
def pictures(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A model that sees pictures alone, and says the state from what it remembers."""
    folder = tmp_path_factory.mktemp("trained") / "pictures"
    settings, recipe = {**SETTINGS, "reads": ["image_side"]}, {**RECIPE, "steps": 40}
    return folder, learned("recurrent", settings, ["image_side", "state"], recipe, run, folder)


@pytest.mark.slow
def test_a_model_of_numbers_passes_every_sentence_of_the_suite(numbers: Trained) -> None:
    assert_conforms(check_world(partial(LearnedWorld, numbers[0]), steps=12))


@pytest.mark.slow
def test_a_model_of_pictures_passes_every_sentence_of_the_suite(pictures: Trained) -> None:
    assert_conforms(check_world(partial(LearnedWorld, pictures[0], batch_size=4), steps=12))


@pytest.mark.slow
def test_a_model_that_begins_in_its_simulator_passes_every_sentence_of_the_suite(pictures: Trained) -> None:
    assert_conforms(check_world(partial(begun_in_the_simulator, pictures[0]), steps=12))


@pytest.mark.slow
def test_frames_are_foreseen_better_than_by_standing_still(numbers: Trained) -> None:
    told = numbers[1]
    assert told["validation_error"] < 0.8 * told["persistence_error"]
    assert told["validation_error_4"] < 0.8 * told["persistence_error_4"]


@pytest.mark.slow
def test_what_is_drawn_is_the_keys_and_the_temperatures_alone(numbers: Trained) -> None:
    def shown(world: LearnedWorld, seed: int) -> np.ndarray:
        world.reset([0], [world.start("bounce", 0)], [key(0)])
        return world.step([0], ACTION, [key(1, seed)]).observation["state"]

    warm, calm = LearnedWorld(numbers[0]), LearnedWorld(numbers[0], temperature=0.0)
    np.testing.assert_array_equal(shown(warm, 1), shown(warm, 1))
    assert (shown(warm, 1) != shown(warm, 2)).any()
    np.testing.assert_array_equal(shown(calm, 1), shown(calm, 2))


@pytest.mark.slow
def test_what_is_taken_in_of_a_frame_is_drawn_by_the_key_of_its_step(pictures: Trained) -> None:
    def shown(seed: int) -> np.ndarray:
        world = begun_in_the_simulator(pictures[0])
        world.reset([0], [world.start("bounce", 5)], [key(0)])
        for step in (1, 2):
            world.step([0], ACTION, [key(step, seed)])
        return world.step([0], ACTION, [key(3)]).observation["state"]

    np.testing.assert_array_equal(shown(1), shown(1))
    assert (shown(1) != shown(2)).any()


def untrained(run: Run) -> tuple[Recurrent, Any]:
    data = window_data(run, ["state"], history=3, ahead=2)
    torch.manual_seed(0)
    model = Recurrent(data.interface, **{**SETTINGS, "history": 3})
    model.fit(data)
    return model, data


def test_nothing_is_remembered_of_before_an_episode(run: Run) -> None:
    model, data = untrained(run)
    recipe = RecurrentRecipe(steps=1, rollout=2)

    def loss(time: int, shift: float) -> float:
        window = first_window(data, time)
        seen = window.seen[NUMBERS].clone()
        seen[:, :2] += shift
        altered = replace(window, seen={NUMBERS: seen})
        return float(model.loss(altered, recipe, torch.Generator().manual_seed(0)).detach())

    assert loss(0, 0.0) == loss(0, 1.0)
    assert loss(9, 0.0) != loss(9, 1.0)


def test_the_draws_of_a_beginning_are_those_of_the_posterior(run: Run) -> None:
    model, data = untrained(run)
    seen = {NUMBERS: first_window(data, 0).seen[NUMBERS][:, 0].expand(4096, -1)}
    draws = torch.rand(4096, model.start_draws, generator=torch.Generator().manual_seed(0))
    tasks = torch.zeros(4096, dtype=torch.int64)
    with torch.no_grad():
        drawn = model.encode(seen, tasks, draws)["latent"]
        middle = model.encode(seen, tasks, torch.full_like(draws, 0.5))["latent"]
        edge = model.encode(seen, tasks, torch.zeros_like(draws))["latent"]
    apart = (drawn - middle) / drawn.std(0)
    assert apart.mean(0).abs().max() < 0.06
    assert (apart.abs() < 1).float().mean() == pytest.approx(0.683, abs=0.01)
    assert torch.isfinite(edge).all()


def test_the_divergence_is_that_of_normal_distributions() -> None:
    draws = torch.Generator().manual_seed(0)
    mean, other = torch.randn(2, 5, 3, generator=draws)
    spread, wide = torch.rand(2, 5, 3, generator=draws) + 0.1
    expected = torch.distributions.kl_divergence(
        torch.distributions.Normal(mean, spread), torch.distributions.Normal(other, wide)
    )
    torch.testing.assert_close(divergence((mean, spread), (other, wide)), expected.sum(-1))


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"reads": ["foo"]}, "foo"), ({"depth": 3}, "depth"), ({"history": 0}, "history"), ({"dim": 0.5}, "dim")],
)
def test_settings_that_no_model_can_have_are_refused_by_name(
    run: Run, tmp_path: Path, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        learned("recurrent", {**SETTINGS, **settings}, ["state"], RECIPE, run, tmp_path)


@pytest.mark.parametrize("setting", [{"balance": 2.0}, {"free": -1.0}, {"divergence": "a"}, {"rollout": 0}])
def test_a_recipe_that_cannot_be_followed_is_refused_by_name(run: Run, tmp_path: Path, setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"recipe.{next(iter(setting))}"):
        learned("recurrent", SETTINGS, ["state"], {**RECIPE, **setting}, run, tmp_path)
