"""Axes: a severity is a whitened norm, and what is drawn of it is physical, plain and repeatable."""

from functools import cache
from importlib.resources import files
from itertools import pairwise

import numpy as np
import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from simeval.axes import Axis, Count, Dropout, Occlusion, PerturbationAxis, TaskChange
from simeval.cli.compose import compose_config, options_of
from simeval.errors import ConfigError
from simeval.types import Perturbation

PIECES = ("count", "steps", "edits", "clauses", "probability", "size")
PRESETS = ("libero-ctrl", "libero-plus", "colosseum")
SINGLE = [name for name in options_of("perturbation") if name not in PRESETS]


@cache
def configured(name: str) -> dict[str, PerturbationAxis]:
    if name in PRESETS:
        return {
            key: instantiate(one) for key, one in compose_config("run", [f"perturbation={name}"]).perturbation.items()
        }
    text = files("configs").joinpath("perturbation", f"{name}.yaml").read_text(encoding="utf-8")
    return {name: instantiate(OmegaConf.create(text))}


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


AXIS = Axis("camera", {"azimuth": 3.0, "distance": 0.05, "up": 0.01}, one_sided=("distance",), seeded=True)


@pytest.mark.parametrize("level", [0.5, 2.0, 8.0])
def test_the_whitened_norm_of_what_is_drawn_is_the_severity(level):
    for seed in range(20):
        drawn = AXIS.draw(level, rng(seed))
        assert AXIS.severity(drawn.params) == pytest.approx(level, rel=1e-12)
        assert drawn.level == level
        assert drawn.params["distance"] >= 0


def test_directions_are_uniform_so_that_no_component_is_preferred():
    drawn = [AXIS.draw(1.0, rng(seed)).params for seed in range(2000)]
    squares = {key: np.mean([(one[key] / scale) ** 2 for one in drawn]) for key, scale in AXIS.scales.items()}
    assert list(squares.values()) == pytest.approx([1 / 3] * 3, abs=0.03)
    assert abs(np.mean([one["azimuth"] for one in drawn])) < 0.1


def test_the_same_generator_draws_the_same_direction_at_every_severity():
    little, much = AXIS.draw(2.0, rng(3)), AXIS.draw(8.0, rng(3))
    for component in AXIS.scales:
        assert much.params[component] == pytest.approx(4 * little.params[component])
    assert little.params["seed"] == much.params["seed"]
    assert AXIS.draw(2.0, rng(3)) == little
    assert AXIS.draw(2.0, rng(4)) != little


def size(drawn: Perturbation, axis: PerturbationAxis) -> list[float]:
    """What grows with the severity: every scaled component, or the number of pieces."""
    components = list(axis.scales) if isinstance(axis, Axis) else {*PIECES} & {*drawn.params}
    return [abs(drawn.params[component]) for component in components]


@pytest.mark.parametrize("name", [name for name in SINGLE if name != "task"])
def test_every_configured_axis_draws_plain_data_whose_size_grows_with_the_severity(name):
    (axis,) = configured(name).values()
    for seed in range(5):
        drawn = [axis.draw(level, rng(seed)) for level in (0.0, *axis.severities)]
        assert all(Perturbation.from_json(one.to_json()) == one for one in drawn)
        assert {one.axis for one in drawn} == {axis.name}
        sizes = [size(one, axis) for one in drawn]
        assert set(sizes[0]) == {0}
        for smaller, larger in pairwise(sizes):
            assert all(less < more for less, more in zip(smaller, larger, strict=True))


def test_levels_1_to_3_are_2_4_and_8_unless_said_otherwise():
    assert AXIS.severities == (2.0, 4.0, 8.0)
    assert all(axis.severities == (2.0, 4.0, 8.0) for axis in configured("libero-ctrl").values())
    assert all(len(axis.severities) == 5 for axis in configured("libero-plus").values())


def test_libero_ctrl_has_the_published_scales():
    axes = configured("libero-ctrl")
    assert [axis.name for axis in axes.values()] == [
        *("camera", "lighting", "initial_state.robot", "sensor", "actuation", "language")
    ]
    assert dict(axes["camera"].scales) == {
        **{"azimuth": 3.48, "elevation": 4.77, "distance": 0.064},
        **{"look_right": 0.019, "look_up": 0.013},
    }
    lighting = {"exposure": 0.25, "warmth": 0.19, "tint": 0.1, "ambient": 0.25, "elevation": 7.5}
    assert dict(axes["lighting"].scales) == lighting


def test_the_hand_is_displaced_as_far_as_published():
    axis = configured("libero-ctrl")["robot"]
    for level, published in ((2, 0.050), (4, 0.101), (8, 0.201)):
        drawn = [axis.draw(level, rng(seed)).params for seed in range(2000)]
        assert np.mean([np.linalg.norm([one["x"], one["y"], one["z"]]) for one in drawn]) == pytest.approx(
            published, rel=0.03
        )


def test_each_factor_of_the_colosseum_is_one_change():
    axes = configured("colosseum")
    assert len(axes) == 10
    assert dict(axes["table_texture"].scales) == {"table_texture": 0.1}
    assert dict(axes["object_mass"].scales) == {"mass": 0.25}


def test_whole_pieces_are_at_least_one_and_follow_the_severity():
    axis = Count("appearance.distractors", "count", 0.5, fixed={"kind": "block"})
    assert [axis.draw(level, rng(0)).params["count"] for level in (0, 0.1, 2, 4, 8)] == [0, 1, 1, 2, 4]
    assert axis.draw(2, rng(0)).params["kind"] == "block"
    assert "seed" not in Count("dynamics.delay", "steps", 0.5, seeded=False).draw(2, rng(0)).params


def test_a_camera_is_drawn_unless_it_is_named():
    drawn = {Dropout().draw(2, rng(seed)).params["camera"] for seed in range(10)}
    assert len(drawn) == 10
    assert all(0 <= camera < 1 for camera in drawn)
    assert Dropout(camera="wrist").draw(2, rng(0)).params["camera"] == "wrist"
    assert Dropout().draw(100, rng(0)).params["probability"] == 1.0
    assert Occlusion(camera="all").draw(4, rng(0)).params["size"] == pytest.approx(0.24)


def test_another_task_is_one_of_the_sentences_given():
    axis = TaskChange(instructions=("open the drawer", "press the button"))
    assert {axis.draw(8, rng(seed)).params["instruction"] for seed in range(20)} == set(axis.instructions)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Axis("camera", {}), "has no scales"),
        (lambda: Axis("camera", {"azimuth": None}), "has no scales"),
        (lambda: Axis("camera", {"azimuth": -1.0}), "scale 'azimuth' of axis camera is a number above 0"),
        (lambda: Axis("camera", {"azimuth": 1.0}, one_sided=("azimut",)), "did you mean azimuth"),
        (lambda: Axis("camera", {"azimuth": 1.0}, severities=(4, 2)), "ascending"),
        (lambda: AXIS.draw(-1, rng(0)), "at least 0"),
        (lambda: AXIS.draw(float("nan"), rng(0)), "at least 0"),
    ],
)
def test_what_is_no_axis_is_refused_in_a_line(make, text):
    with pytest.raises(ConfigError, match=text):
        make()
