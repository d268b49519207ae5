"""Sensor effects: what they do to pictures and numbers, and that more is more."""

from itertools import pairwise
from typing import Any

import cv2
import gymnasium
import numpy as np
import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from simeval.axes import Axis, PerturbationAxis
from simeval.noise import Key, StepKey
from simeval.perturbation import effect_of
from simeval.testing.toys import draw_toy, toy_layout, toy_start
from simeval.types import Perturbation, WorldSpec

SIZE = 96
SPEC = WorldSpec(
    "eyes",
    gymnasium.spaces.Dict(
        {
            "image_front": gymnasium.spaces.Box(0, 255, (SIZE, SIZE, 3), np.uint8),
            "image_wrist": gymnasium.spaces.Box(0, 255, (SIZE, SIZE, 3), np.uint8),
            "proprio": gymnasium.spaces.Box(-np.inf, np.inf, (7,), np.float64),
        }
    ),
    gymnasium.spaces.Box(-1, 1, (4,), np.float32),
    0.05,
    ("look",),
)
PICTURE = draw_toy(toy_layout(toy_start("push-left", 3))[None], SIZE)[0]
SEEN = {"image_front": PICTURE, "image_wrist": PICTURE[::-1].copy(), "proprio": np.linspace(-1, 1, 7)}


def at(step: int, seed: int = 0) -> StepKey:
    return Key(seed).stream("perturbation").key(step)


def changed(perturbation: Perturbation, step: int = 3, seed: int = 0) -> dict[str, Any]:
    effect = effect_of(perturbation, SPEC)
    own = {key: SEEN[key] for key in effect.observation_keys}
    return {**SEEN, **effect.observation(own, {}, at(step, seed))[0]}


def sensed(**params: Any) -> dict[str, Any]:
    return changed(Perturbation("sensor", params=params))


def axis(name: str) -> PerturbationAxis:
    return instantiate(OmegaConf.load(f"configs/perturbation/{name}.yaml"))


def distance(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one.astype(np.float64) - other.astype(np.float64)).mean())


def test_effects_leave_what_they_are_given_as_it_is_and_keep_its_kind():
    before = {key: value.copy() for key, value in SEEN.items()}
    for name in ("sensor", "dropout", "occlusion"):
        seen = changed(axis(name).draw(8.0, np.random.default_rng(1)))
        for key, value in seen.items():
            assert (value.dtype, value.shape) == (before[key].dtype, before[key].shape)
    for key, value in SEEN.items():
        np.testing.assert_array_equal(value, before[key])


def test_noise_has_its_standard_deviation_and_is_another_at_each_step_camera_and_rollout():
    grey = np.full((SIZE, SIZE, 3), 128, np.uint8)
    effect = effect_of(Perturbation("sensor", params={"noise": 10.0}), SPEC)
    seen = effect.observation({"image_front": grey, "image_wrist": grey}, {}, at(3))[0]
    front = seen["image_front"].astype(float) - 128
    assert front.std() == pytest.approx(10.0, rel=0.02)
    assert abs(front.mean()) < 0.2
    others = [
        seen["image_wrist"],
        *(effect.observation({"image_front": grey}, {}, key)[0]["image_front"] for key in (at(4), at(3, 1))),
    ]
    assert all(abs(np.corrcoef(front.ravel(), other.ravel())[0, 1]) < 0.03 for other in others)
    again = effect.observation({"image_front": grey}, {}, at(3))[0]["image_front"]
    np.testing.assert_array_equal(again, seen["image_front"])


def test_noise_on_numbers_is_theirs_alone():
    seen = [changed(Perturbation("sensor", params={"proprio": 0.1}), step) for step in range(300)]
    noise = np.stack([one["proprio"] - SEEN["proprio"] for one in seen])
    assert noise.std() == pytest.approx(0.1, rel=0.05)
    assert abs(np.corrcoef(noise[:-1].ravel(), noise[1:].ravel())[0, 1]) < 0.06
    np.testing.assert_array_equal(seen[0]["image_front"], PICTURE)


def test_a_blur_is_of_the_picture_s_height_and_keeps_its_light():
    seen = sensed(blur=0.02)["image_front"]
    np.testing.assert_array_equal(seen, cv2.GaussianBlur(PICTURE, (0, 0), 0.02 * SIZE))
    assert seen.mean() == pytest.approx(PICTURE.mean(), abs=0.5)


def test_a_smear_goes_one_way_and_is_as_long_as_it_is_said():
    point = np.zeros((SIZE, SIZE, 3), np.uint8)
    point[48, 48] = 255
    effect = effect_of(Perturbation("sensor", params={"motion_blur": 10 / SIZE, "seed": 7}), SPEC)
    smeared = effect.observation({"image_front": point}, {}, at(0))[0]["image_front"][..., 0]
    rows, columns = np.nonzero(smeared > 3)
    assert np.hypot(np.ptp(rows), np.ptp(columns)) == pytest.approx(10, abs=2)
    across = np.linalg.svd(np.stack([rows, columns], 1) - [48, 48], compute_uv=False)
    assert across[1] < 0.4 * across[0]
    assert smeared.sum() == pytest.approx(255, rel=0.1)
    shorter = Perturbation("sensor", params={"motion_blur": 1e-6, "seed": 7})
    np.testing.assert_array_equal(changed(shorter)["image_front"], PICTURE)


def test_jpeg_keeps_red_red():
    red = np.zeros((SIZE, SIZE, 3), np.uint8)
    red[:, : SIZE // 2, 0], red[:, SIZE // 2 :, 2] = 220, 220
    effect = effect_of(Perturbation("sensor", params={"jpeg": 50}), SPEC)
    seen = effect.observation({"image_front": red}, {}, at(0))[0]["image_front"]
    assert distance(seen, red) < 6
    grey = effect.observation({"image_front": red[..., :1]}, {}, at(0))[0]["image_front"]
    assert grey.shape == (SIZE, SIZE, 1)


@pytest.mark.parametrize("component", ["noise", "blur", "jpeg", "motion_blur"])
def test_each_component_changes_pictures_more_the_larger_it_is(component):
    scale = axis("sensor").scales[component]
    distances = [
        distance(sensed(**{component: scale * level, "seed": 1})["image_front"], PICTURE) for level in (2, 4, 8)
    ]
    assert all(less < more for less, more in pairwise([0.0, *distances]))


@pytest.mark.parametrize(("name", "steps"), [("sensor", 2), ("dropout", 25), ("occlusion", 1)])
def test_a_severer_sensor_changes_pictures_more(name, steps):
    drawn = axis(name)

    def mean(level: float) -> float:
        found = [
            distance(changed(drawn.draw(level, np.random.default_rng(seed)), step)[key], SEEN[key])
            for seed in range(8)
            for step in range(steps)
            for key in ("image_front", "image_wrist")
        ]
        return float(np.mean(found))

    distances = [mean(level) for level in drawn.severities]
    assert all(less < more for less, more in pairwise([0.0, *distances]))


def test_severer_numbers_are_farther_off():
    drawn = axis("sensor_numbers")
    assert isinstance(drawn, Axis)
    proprio = Axis("sensor", {"proprio": drawn.scales["proprio"]}, one_sided=("proprio",))
    distances = [
        np.mean(
            [
                np.abs(
                    changed(proprio.draw(level, np.random.default_rng(seed)), seed)["proprio"] - SEEN["proprio"]
                ).mean()
                for seed in range(10)
            ]
        )
        for level in drawn.severities
    ]
    assert all(less < more for less, more in pairwise([0.0, *distances]))


def test_a_lost_picture_is_lost_as_often_as_it_is_said_and_the_same_ones_at_a_severer_level():
    def lost(probability: float) -> np.ndarray:
        out = Perturbation("sensor.dropout", params={"probability": probability, "camera": "wrist"})
        return np.array([not changed(out, step)["image_wrist"].any() for step in range(400)])

    some, more = lost(0.2), lost(0.5)
    assert some.mean() == pytest.approx(0.2, abs=0.06)
    assert more.mean() == pytest.approx(0.5, abs=0.08)
    assert (more >= some).all()
    out = Perturbation("sensor.dropout", params={"probability": 1.0, "camera": "wrist"})
    np.testing.assert_array_equal(changed(out)["image_front"], PICTURE)


def test_a_frozen_camera_shows_the_last_picture_that_was_not_lost():
    effect = effect_of(Perturbation("sensor.dropout", params={"probability": 0.6, "mode": "frozen"}), SPEC)
    memory, shown = effect.initial_memory(), []
    for step in range(60):
        frames = {key: np.full((4, 4, 3), step + 1, np.uint8) for key in effect.observation_keys}
        seen, memory = effect.observation(frames, memory, at(step))
        shown.append(int(seen["image_front"][0, 0, 0]))
    assert shown[0] == 1
    assert all(now in (before, step + 2) for step, (before, now) in enumerate(pairwise(shown)))
    held = np.mean([before == now for before, now in pairwise(shown)])
    assert held == pytest.approx(0.6, abs=0.2)


def test_a_number_picks_a_camera():
    keys = [
        effect_of(Perturbation("sensor.dropout", params={"probability": 1, "camera": number}), SPEC).observation_keys
        for number in (0.0, 0.49, 0.5, 0.999)
    ]
    assert keys == [("image_front",), ("image_front",), ("image_wrist",), ("image_wrist",)]


@pytest.mark.parametrize(("x", "y"), [(0, 0), (1, 1), (0.5, 0.25)])
def test_a_patch_lies_within_the_picture_and_has_its_size(x, y):
    white = np.full((SIZE, SIZE, 3), 255, np.uint8)
    effect = effect_of(Perturbation("sensor.occlusion", params={"size": 0.25, "x": x, "y": y}), SPEC)
    seen = effect.observation({"image_front": white}, {}, at(0))[0]["image_front"]
    rows, columns = np.nonzero(~seen.any(axis=2))
    assert len(rows) == 24 * 24
    assert (rows.min(), columns.min()) == (round(y * 72), round(x * 72))
    whole = effect_of(Perturbation("sensor.occlusion", params={"size": 1.0}), SPEC)
    assert not whole.observation({"image_front": white}, {}, at(0))[0]["image_front"].any()
