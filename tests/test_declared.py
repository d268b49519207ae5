"""What a class declares to take is what a configuration may give it; the rest is refused by name, in one way."""

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import pytest
from omegaconf import OmegaConf

from simeval.cli.compose import options_of
from simeval.declared import check_declared
from simeval.errors import ConfigError
from simeval.host.target import build, locate
from simeval.policy import Policy
from simeval.world import World


class Taker:
    def __init__(
        self,
        count: int,
        share: float = 0.5,
        name: str = "",
        file: str | Path = "",
        many: Sequence[float] = (),
        names: str | Sequence[str] | None = None,
        pair: tuple[int, str] = (0, ""),
        table: Mapping[str, Any] | None = None,
        sure: bool = False,
        mode: Literal["a", "b"] = "a",
        policy: Policy | None = None,
        anything: Any = None,
        undeclared=None,  # type: ignore[no-untyped-def]
    ):
        pass


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"share": 1},
        {"file": "x", "names": "one", "many": [1, 2.5]},
        {"names": ["one", "two"], "table": {"a": None}, "pair": [3, "x"]},
        {"sure": True, "mode": "b", "anything": [{}], "undeclared": 5},
        {"policy": {"_target_": "policies.basic.Uniform"}, "names": None},
    ],
)
def test_what_is_declared_is_taken(settings: dict[str, Any]) -> None:
    check_declared(Taker, {"count": 1, **settings})


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"count": "x"}, "count is a whole number; received 'x'"),
        ({"count": True}, "count is a whole number; received True"),
        ({"count": 1e23}, "count is a whole number; received 1e"),
        ({"share": "abc"}, "share is a number; received 'abc'"),
        ({"share": None}, "share is a number; received None"),
        ({"name": None}, "name is a text; received None"),
        ({"file": 5}, "file is a text or a path; received 5"),
        ({"many": [1, "x"]}, "many is a list of numbers; received"),
        ({"many": "x"}, "many is a list of numbers; received 'x'"),
        ({"names": [1]}, "names is a name or a list of names or null; received"),
        ({"pair": [1]}, "pair is a list"),
        ({"pair": ["x", 1]}, "pair is a list"),
        ({"table": 5}, "table is a mapping or null; received 5"),
        ({"sure": "maybe"}, "sure is true or false; received 'maybe'"),
        ({"mode": "c"}, "mode is one of a, b; received 'c'"),
        ({"policy": "expert"}, "policy is a Policy or null; received 'expert'"),
        ({"cuont": 1}, "unknown setting of recipe 'cuont'; did you mean count"),
    ],
)
def test_what_is_not_declared_is_refused_by_name(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        check_declared(Taker, {"count": 1, **settings}, "recipe.")


def test_what_has_no_default_must_be_given_unless_it_comes_from_elsewhere() -> None:
    with pytest.raises(ConfigError, match="world 'x': count must be given"):
        check_declared(Taker, {}, "world 'x': ")
    check_declared(Taker, {}, apart=("count",))
    with pytest.raises(ConfigError, match="unknown setting"):
        check_declared(Taker, {"count": 1}, apart=("count",))


def test_a_worker_refuses_in_the_same_words() -> None:
    with pytest.raises(ConfigError, match="world 'toy': num_slots is a whole number; received 'two'"):
        build({"_target_": "simeval.testing.ToySimulator", "num_slots": "two"}, World, "world 'toy'")


SHIPPED = [(group, name) for group in ("world", "policy", "protocol", "worldmodel") for name in options_of(group)]


@pytest.mark.parametrize(("group", "name"), SHIPPED)
def test_what_ships_is_of_the_types_that_its_classes_declare(group: str, name: str) -> None:
    entry: Any = OmegaConf.load(str(resources.files("configs").joinpath(group, f"{name}.yaml")))
    own: dict[str, Any] = OmegaConf.to_container(entry, resolve=False)  # type: ignore[assignment]
    apart = {"name", "host", "expert", "vla", "diffusion", "conventions"}
    open_ = {key for key, value in own.items() if isinstance(value, str) and value.startswith(("???", "${"))}
    taker = locate(own["_target_"], name)
    given = {key: value for key, value in own.items() if not key.startswith("_") and key not in apart | open_}
    check_declared(taker, given, apart=open_)
