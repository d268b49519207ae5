"""Settings that do not fit are refused in one line by the constructor, not by a reset; one name is a list of one."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from envs.gymnasium import GymnasiumWorld
from envs.metaworld import MetaWorld
from envs.robosuite import Robosuite
from envs.tabletop import Tabletop
from simeval.errors import ConfigError
from simeval.settings import names, positive, truth, whole
from simeval.testing import ToySimulator, ToyWorldModel
from simeval.world import World

WORLDS: dict[str, tuple[Callable[..., World], str]] = {
    "tabletop": (partial(Tabletop, "reach"), "front"),
    "metaworld": (partial(MetaWorld, "reach-v3"), "corner"),
    "robosuite": (partial(Robosuite, "Lift"), "agentview"),
    "gymnasium": (partial(GymnasiumWorld, "HalfCheetah-v5"), "track"),
    "toy": (ToySimulator, "top"),
    "toy_model": (ToyWorldModel, "top"),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == "robosuite" else name for name in WORLDS]
)
def test_one_camera_is_a_list_of_one(name):
    make, camera = WORLDS[name]
    one, listed = make(num_slots=1, cameras=camera), make(num_slots=1, cameras=[camera])
    assert one.observation_space == listed.observation_space
    assert f"image_{camera}" in one.observation_space.spaces
    assert one.fingerprint == listed.fingerprint
    one.close()
    listed.close()


WRONG: list[tuple[str, Any]] = [
    ("image_size", 0),
    ("image_size", -3),
    ("image_size", "big"),
    ("image_size", 64.5),
    ("image_size", True),
    ("image_size", None),
    ("image_size", [64, 64]),
    ("image_size", 20_000),
    ("num_slots", 0),
    ("num_slots", -1),
    ("num_slots", "two"),
    ("num_slots", 1.0),
    ("num_slots", False),
    ("num_slots", None),
    ("cameras", 3),
    ("cameras", True),
    ("cameras", None),
    ("cameras", ["no such camera"]),
    ("cameras", [None]),
]


@pytest.mark.parametrize(("setting", "value"), WRONG)
@pytest.mark.parametrize("name", WORLDS)
def test_a_setting_that_does_not_fit_is_named_when_the_world_is_built(name, setting, value):
    with pytest.raises(ConfigError, match=setting.removesuffix("s")) as caught:
        WORLDS[name][0](**{"num_slots": 1, "cameras": WORLDS[name][1], setting: value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "setting", "value"),
    [
        (Tabletop, "task", 5),
        (Tabletop, "threads", 0),
        (Tabletop, "threads", "all"),
        (Tabletop, "success_hold", True),
        (MetaWorld, "task", None),
        (MetaWorld, "task", ["reach-v3", 3]),
        (partial(MetaWorld, "reach-v3"), "max_simulators", 0),
        (Robosuite, "task", 5),
        (Robosuite, "robots", 5),
        (Robosuite, "control_freq", "fast"),
        (Robosuite, "horizon", True),
        (Robosuite, "horizon", 0),
        (Robosuite, "reward_shaping", "yes"),
        (Robosuite, "model_seed", -1),
        (GymnasiumWorld, "id", 5),
        (partial(GymnasiumWorld, "HalfCheetah-v5"), "kwargs", "fast"),
        (partial(GymnasiumWorld, "HalfCheetah-v5"), "control_dt", 0),
        (partial(GymnasiumWorld, "HalfCheetah-v5"), "control_dt", "quick"),
        (partial(GymnasiumWorld, "HalfCheetah-v5"), "success", "yes"),
    ],
)
def test_settings_of_one_world_are_checked_too(make, setting, value):
    with pytest.raises(ConfigError, match=setting):
        make(**{setting: value})


def test_names_are_one_or_several():
    assert names("task", "all") == ("all",)
    assert names("task", ["a", "b"]) == names("task", iter("ab")) == ("a", "b")
    assert names("task", ()) == ()
    with pytest.raises(ConfigError, match="cameras is a name or a list of names; received 3"):
        names("cameras", 3)  # type: ignore[arg-type]


def test_numbers_are_numbers():
    assert whole("n", np.int64(4)) == 4
    assert whole("n", 0, least=0) == 0
    assert positive("dt", np.float32(0.5)) == 0.5
    assert truth("flag", np.bool_(False)) is False
    for bad in (float("nan"), float("inf"), -1.0, True, "1"):
        with pytest.raises(ConfigError, match="dt is a number above 0"):
            positive("dt", bad)  # type: ignore[arg-type]
    for bad in (1, "true", None):
        with pytest.raises(ConfigError, match="flag is true or false"):
            truth("flag", bad)  # type: ignore[arg-type]
