"""Rollouts that differ are not pooled, arms are named by what tells them apart, and an episode counts once."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simeval.arms import Arm, labels
from simeval.errors import TraceError
from simeval.score import score
from simeval.testing.runs import made_episode, made_rollout, write_made_run
from simeval.types import Perturbation, Rollout

Perturbations = tuple[Perturbation, ...]


def _replace(value: float, **fields: Any) -> Perturbation:
    return Perturbation("actuation.replace", params={"value": [value, value]}, **fields)


DIFFERENT: dict[str, tuple[Perturbations, Perturbations, tuple[str, str]]] = {
    "params": (
        (_replace(1),),
        (_replace(-1),),
        ("p · actuation.replace 1 (value [1,1])", "p · actuation.replace 1 (value [-1,-1])"),
    ),
    "close levels": (
        (Perturbation("dynamics.mass", 0.12345678),),
        (Perturbation("dynamics.mass", 0.12345679),),
        ("p · dynamics.mass 0.12345678", "p · dynamics.mass 0.12345679"),
    ),
    "steps": (
        (Perturbation("dynamics.mass", 2.0),),
        (Perturbation("dynamics.mass", 2.0, from_step=5, to_step=10),),
        ("p · dynamics.mass 2 (at every step)", "p · dynamics.mass 2 (steps 5 to 9)"),
    ),
    "an absent parameter": (
        (Perturbation("dynamics.mass"),),
        (Perturbation("dynamics.mass", params={"body": "box"}),),
        ("p · dynamics.mass 1 (body null)", "p · dynamics.mass 1 (body box)"),
    ),
    "levels only": (
        (Perturbation("dynamics.mass", 1.5),),
        (),
        ("p · dynamics.mass 1.5", "p · nominal"),
    ),
    "order": (
        (Perturbation("sensor.noise"), Perturbation("sensor.delay")),
        (Perturbation("sensor.delay"), Perturbation("sensor.noise")),
        ("p · sensor.noise 1 + sensor.delay 1", "p · sensor.delay 1 + sensor.noise 1"),
    ),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_perturbations_that_differ_in_any_way_make_other_arms_whose_names_say_how(what: str) -> None:
    *sides, expected = DIFFERENT[what]
    arms = [Arm.of(replace(made_rollout("p", "t", 0), perturbations=side)) for side in sides]
    assert arms[0] != arms[1]
    names = labels(arms)
    assert (names[arms[0]], names[arms[1]]) == expected


def test_names_stay_apart_where_what_differs_is_too_long_to_show() -> None:
    long = [(Perturbation("dynamics.pose", params={"value": [0] * 40 + [last]}),) for last in (1, 2)]
    names = labels(Arm.of(replace(made_rollout("p", "t", 0), perturbations=p)) for p in long)
    assert len(set(names.values())) == 2
    assert all(len(name) < 70 for name in names.values())


def test_a_level_written_as_an_integer_is_the_same_level() -> None:
    plain = made_rollout("p", "t", 0)
    one, other = (replace(plain, perturbations=(Perturbation("dynamics.mass", level),)) for level in (2, 2.0))
    assert Arm.of(one) == Arm.of(other)


def _scores(tmp_path: Path, episodes: dict[Rollout, bool]) -> dict[str, Any]:
    return score(write_made_run(tmp_path / "run", [made_episode(r, won) for r, won in episodes.items()]))


def test_counterfactual_actions_are_scored_apart(tmp_path: Path) -> None:
    plain = made_rollout("p", "t", 0)
    scores = _scores(tmp_path, {replace(plain, perturbations=(_replace(v),)): v > 0 for v in (1, -1)})
    assert [(arm["n"], arm["successes"]) for arm in scores["arms"]] == [(1, 1), (1, 0)]
    assert scores["pairs"][0]["n"] == 1


def test_horizons_that_differ_on_one_task_are_not_pooled(tmp_path: Path) -> None:
    rollouts = {made_rollout("p", "t", index, horizon=h): h == 200 for index in range(3) for h in (100, 200)}
    rollouts |= {made_rollout("p", "other task", 0, horizon=50): True}
    scores = _scores(tmp_path, rollouts)
    assert {arm["arm"]: (arm["n"], arm["successes"]) for arm in scores["arms"]} == {
        "p · horizon 100": (3, 0),
        "p · horizon 200": (3, 3),
        "p": (1, 1),
    }
    (pair,) = scores["pairs"]
    assert {pair["a"], pair["b"]} == {"p · horizon 100", "p · horizon 200"}


def test_each_task_may_have_a_horizon_of_its_own(tmp_path: Path) -> None:
    scores = _scores(tmp_path, {made_rollout("p", f"t{h}", 0, horizon=h): True for h in (100, 200)})
    assert [(arm["arm"], arm["n"]) for arm in scores["arms"]] == [("p", 2)]


def test_stopping_at_success_or_not_is_told_apart(tmp_path: Path) -> None:
    scores = _scores(tmp_path, {made_rollout("p", "t", 0, stop_on_success=stop): True for stop in (True, False)})
    assert [arm["arm"] for arm in scores["arms"]] == ["p · stops at success", "p · goes on after success"]


def test_a_start_asked_for_in_other_words_is_told_apart(tmp_path: Path) -> None:
    plain = made_rollout("p", "t", 0)
    other = replace(plain, start=replace(plain.start, instruction="go"))
    scores = _scores(tmp_path, {plain: True, other: False})
    assert [(arm["arm"], arm["n"]) for arm in scores["arms"]] == [("p · “t, please”", 1), ("p · “go”", 1)]


def test_an_episode_that_was_requested_twice_counts_once(tmp_path: Path) -> None:
    plain = made_rollout("p", "t", 0)
    again = replace(plain, snapshot_steps=(3,))
    children = {parent.branch(5, fresh=["policy"], seed=1): True for parent in (plain, again)}
    scores = _scores(tmp_path, {plain: True, again: True, **children})
    assert [(arm["n"], arm["successes"]) for arm in scores["arms"]] == [(1, 1)]
    assert [row["n"] for row in scores["branches"]] == [1]
    repeated = [row for row in scores["not_counted"] if row["id"] == again.id]
    assert repeated[0]["reason"] == "repeated"
    assert plain.id in repeated[0]["detail"]


def test_of_an_episode_requested_twice_the_one_that_finished_counts(tmp_path: Path) -> None:
    plain = made_rollout("p", "t", 0)
    episodes = [
        made_episode(plain, False, error="it broke"),
        made_episode(replace(plain, snapshot_steps=(3,)), True),
    ]
    (arm,) = score(write_made_run(tmp_path / "run", episodes))["arms"]
    assert (arm["n"], arm["successes"], arm["errors"]) == (1, 1, 0)


def test_an_episode_requested_twice_that_ended_differently_is_an_error_that_names_both(tmp_path: Path) -> None:
    plain = made_rollout("p", "t", 0)
    again = replace(plain, snapshot_steps=(3,))
    with pytest.raises(TraceError, match=f"{plain.id} and {again.id}"):
        _scores(tmp_path, {plain: True, again: False})
