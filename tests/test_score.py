"""Scores come from the trace arrays, name what they leave out, and notice a file that was altered."""

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from rich.console import Console

from simeval import stats
from simeval.compare import compare
from simeval.episode import Episode
from simeval.errors import ConfigError, TraceError
from simeval.outcomes import read_outcomes
from simeval.reader import Run
from simeval.score import score
from simeval.tables import print_comparison, print_table
from simeval.testing.runs import made_episode, made_episodes, made_rollout, write_made_run
from simeval.trace import TraceWriter
from simeval.types import Perturbation

_RATES = {"expert": 0.9, "noisy": 0.5}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    episodes = list(made_episodes(_RATES, ["pick", "push"], 15))
    for policy, error in (("expert", ""), ("noisy", "Traceback …\nSimulatorError: gave up")):
        episodes.append(made_episode(made_rollout(policy, "push", 15), True, error=error))
        episodes.append(made_episode(made_rollout(policy, "push", 16), True, solved_at_reset=True))
    return write_made_run(
        tmp_path_factory.mktemp("score") / "study",
        episodes,
        pending=[made_rollout("expert", "pick", 20)],
        dropped={made_rollout("noisy", "pick", 21): "its parent ended before the branch step"},
    )


@pytest.fixture(scope="module")
def scores(run: Run) -> dict[str, Any]:
    return score(run)


def _arm(scores: dict[str, Any], name: str) -> dict[str, Any]:
    return next(arm for arm in scores["arms"] if arm["arm"] == name)


def _shard(run: Run) -> tuple[Path, str]:
    path = sorted((run.path / "traces").glob("*.h5"))[0]
    with h5py.File(path) as file:
        name = next(name for name in file if file[name].attrs["status"] == "done" and file[name].attrs["success"])
    return path, name


@pytest.fixture
def copy(run: Run, tmp_path: Path) -> Run:
    shutil.copytree(run.path, tmp_path / "copy")
    return Run(tmp_path / "copy")


def test_rates_and_intervals_are_those_of_the_recorded_outcomes(run: Run, scores: dict[str, Any]) -> None:
    counted = [e for e in run if e.status == "done" and not e.ending.solved_at_reset]
    for name in _RATES:
        mine = [bool(episode.success.any()) for episode in counted if episode.rollout.policy == name]
        arm, wilson = _arm(scores, name), stats.wilson(sum(mine), len(mine))
        assert (arm["n"], arm["successes"], arm["rate"]) == (len(mine), sum(mine), np.mean(mine))
        assert arm["wilson"] == [wilson.low, wilson.high]
        returns = [episode.reward.sum() for episode in counted if episode.rollout.policy == name]
        assert arm["return"]["mean"] == pytest.approx(np.mean(returns))
    by_task = [row for row in scores["tasks"] if row["arm"] == "noisy"]
    assert sum(row["successes"] for row in by_task) == _arm(scores, "noisy")["successes"]
    assert scores["overall"]["n"] == len(counted)


def test_both_denominators_are_given_and_an_error_is_no_success(scores: dict[str, Any]) -> None:
    noisy = _arm(scores, "noisy")
    assert noisy["errors"] == 1
    assert noisy["with_errors"]["n"] == noisy["n"] + 1
    assert noisy["with_errors"]["successes"] == noisy["successes"]
    assert noisy["with_errors"]["rate"] < noisy["rate"]


def test_whatever_was_requested_and_not_counted_is_listed_with_its_reason(run: Run, scores: dict[str, Any]) -> None:
    reasons = sorted((row["reason"], row["detail"]) for row in scores["not_counted"])
    assert reasons == [
        ("dropped", "its parent ended before the branch step"),
        ("error", "SimulatorError: gave up"),
        ("pending", "requested and not finished"),
        ("solved at reset", "the task was already solved before the first action"),
        ("solved at reset", "the task was already solved before the first action"),
    ]
    assert scores["requested"]["rollouts"] == len(run.episodes)
    assert scores["requested"]["counted"] + len(scores["not_counted"]) == len(run.episodes)


def test_policies_that_share_starts_and_noise_are_paired(run: Run, scores: dict[str, Any]) -> None:
    (pair,) = scores["pairs"]
    won = {(e.rollout.policy, e.rollout.start.task, e.rollout.seed): bool(e.success.any()) for e in run}
    only_a = sum(won["expert", t, s] and not won["noisy", t, s] for p, t, s in won if p == "noisy")
    test = stats.mcnemar(pair["only_a"], pair["only_b"])
    assert (pair["a"], pair["b"], pair["n"]) == ("expert", "noisy", 30)
    assert pair["only_a"] == only_a
    assert pair["p"] == pair["p_holm"] == test.p
    assert pair["left_out"] == {"error": 1, "solved at reset": 1, "only one side asked for this start": 2}
    assert sum(row["n"] for row in pair["tasks"]) == 30


def test_holm_corrects_over_the_pairs(tmp_path: Path) -> None:
    rates = {"a": 0.9, "b": 0.5, "c": 0.3}
    pairs = score(write_made_run(tmp_path / "three", made_episodes(rates, ["pick"], 20)))["pairs"]
    assert [(pair["a"], pair["b"]) for pair in pairs] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert [pair["p_holm"] for pair in pairs] == stats.holm([pair["p"] for pair in pairs])


def test_arms_are_told_apart_by_perturbation_and_compared_only_when_one_thing_differs(tmp_path: Path) -> None:
    episodes = []
    for policy in ("a", "b"):
        for index in range(4):
            plain = made_rollout(policy, "pick", index)
            heavy = replace(plain, perturbations=(Perturbation("dynamics.mass", 2.0),))
            episodes += [made_episode(plain, True), made_episode(heavy, policy == "a")]
    scores = score(write_made_run(tmp_path / "matched", episodes))
    assert [arm["arm"] for arm in scores["arms"]] == [
        "a · nominal",
        "a · dynamics.mass 2",
        "b · nominal",
        "b · dynamics.mass 2",
    ]
    assert len(scores["pairs"]) == 4
    assert ("a · nominal", "b · dynamics.mass 2") not in {(pair["a"], pair["b"]) for pair in scores["pairs"]}


def test_worlds_with_tasks_of_their_own_are_scored_together_and_those_that_share_tasks_are_compared(
    tmp_path: Path,
) -> None:
    def episodes(tasks: dict[str, list[str]]) -> list[Episode]:
        return [
            made_episode(made_rollout(policy, task, index, world=world), policy == "a")
            for world, names in tasks.items()
            for task in names
            for policy in ("a", "b")
            for index in range(3)
        ]

    apart = score(write_made_run(tmp_path / "apart", episodes({"left": ["t1"], "right": ["t2"]})))
    assert [(arm["arm"], arm["n"]) for arm in apart["arms"]] == [("a", 6), ("b", 6)]
    assert [(pair["a"], pair["b"], pair["n"]) for pair in apart["pairs"]] == [("a", "b", 6)]
    shared = score(write_made_run(tmp_path / "shared", episodes({"simulator": ["t1"], "model": ["t1"]})))
    names = ["a @ simulator", "b @ simulator", "a @ model", "b @ model"]
    assert [arm["arm"] for arm in shared["arms"]] == names
    assert (names[0], names[2]) in {(pair["a"], pair["b"]) for pair in shared["pairs"]}
    assert (names[0], names[3]) not in {(pair["a"], pair["b"]) for pair in shared["pairs"]}


def test_the_headline_states_interval_and_rule(scores: dict[str, Any], tmp_path: Path) -> None:
    assert scores["rule"]["name"] in scores["headline"]
    assert "95 % interval" in scores["headline"]
    alone = score(write_made_run(tmp_path / "one", made_episodes({"expert": 1.1}, ["pick"], 4)))
    assert alone["headline"].startswith(
        "expert succeeded in 4 of 4 episodes, 100 % (95 % interval 51 % to 100 %, Wilson)"
    )


def test_the_headline_claims_a_difference_only_where_one_is_shown(scores: dict[str, Any], tmp_path: Path) -> None:
    assert "expert succeeded more often than noisy by" in scores["headline"]
    episodes = [made_episode(made_rollout(p, "t", i), p == "a" or i > 1) for i in range(9) for p in ("b", "a")]
    few = score(write_made_run(tmp_path / "few", episodes))["headline"]
    assert few.startswith("On the same 9 starts and noise, no difference is shown: a leads b by 22 points")
    assert "more often" not in few


def test_success_must_hold_and_other_rules_show_what_that_changes(tmp_path: Path) -> None:
    episodes = []
    for index in range(4):
        episode = made_episode(made_rollout("p", "t", index), True, success_hold=3)
        episodes.append(episode if index else made_episode(made_rollout("p", "t", 0), False, success_hold=3))
    episodes[0].source.arrays["success"][5:7] = True  # two steps of three: transient
    (arm,) = score(write_made_run(tmp_path / "hold", episodes))["arms"]
    assert arm["rate"] == 0.75
    assert arm["under_other_rules"]["goal touched at any step"] == 1.0
    assert arm["under_other_rules"]["goal holds at the last step"] == 0.75


def test_scores_json_is_what_was_returned(run: Run, scores: dict[str, Any]) -> None:
    assert json.loads((run.path / "scores.json").read_text()) == scores
    assert list(run.path.glob(".scores*")) == []


def test_a_rollout_that_was_swapped_under_an_id_is_noticed(copy: Run) -> None:
    path, name = _shard(copy)
    with h5py.File(path, "r+") as file:
        rollout = json.loads(file[name].attrs["rollout"])
        file[name].attrs["rollout"] = json.dumps({**rollout, "policy": "better"})
    with pytest.raises(TraceError, match=name):
        score(copy)


def test_a_trace_file_that_is_gone_is_an_error_that_names_an_episode(copy: Run) -> None:
    path, _ = _shard(copy)
    path.unlink()
    with pytest.raises(TraceError, match=r"is '(done|error)' in the index, but no file"):
        score(copy)


def test_an_error_that_was_run_again_counts_once_as_what_it_became(tmp_path: Path) -> None:
    rollout = made_rollout("p", "t", 0)
    run = write_made_run(tmp_path / "again", [made_episode(rollout, False, error="it broke")])
    writer = TraceWriter(run.path, "again")
    writer.write(made_episode(rollout, True))
    writer.close()
    (outcome,) = read_outcomes(Run(run.path))
    assert outcome.succeeded


def test_branches_are_scored_apart_from_the_headline(tmp_path: Path) -> None:
    root = made_rollout("p", "t", 0)
    child = root.branch(5, fresh=["policy"], seed=1)
    run = write_made_run(tmp_path / "tree", [made_episode(root, False), made_episode(child, True)])
    scores = score(run)
    assert (scores["arms"][0]["n"], scores["arms"][0]["successes"]) == (1, 0)
    assert [(row["n"], row["successes"]) for row in scores["branches"]] == [(1, 1)]


def test_a_run_in_which_nothing_counts_has_scores_without_rates(tmp_path: Path) -> None:
    scores = score(write_made_run(tmp_path / "none", [], pending=[made_rollout("p", "t", 0)]))
    assert scores["overall"]["rate"] is None
    assert "no success rate" in scores["headline"]


def _printed(show: Any, data: dict[str, Any], width: int = 120) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    show(data, console)
    return console.export_text()


def test_the_terminal_table_shows_rates_counts_errors_and_the_paired_difference(scores: dict[str, Any]) -> None:
    text = _printed(print_table, scores).replace("\u00a0", " ")
    noisy = _arm(scores, "noisy")
    assert f"{noisy['successes']}/{noisy['n']}" in text
    assert "1 error" in text
    assert "expert − noisy" in text
    assert "[points]" in text
    assert "all tasks" in text


def test_with_many_policies_the_table_has_a_row_for_each(tmp_path: Path) -> None:
    rates = {f"policy [{index}]": 0.2 * index for index in range(6)}
    text = _printed(print_table, score(write_made_run(tmp_path / "many", made_episodes(rates, ["t"], 6))))
    assert all(name in text for name in rates)


def _two_runs(tmp_path: Path, starts_b: range, policy_b: str = "p") -> tuple[Run, Run]:
    a = [made_episode(made_rollout("p", "t", index), index % 10 != 0) for index in range(20)]
    b = [made_episode(made_rollout(policy_b, "t", index), index % 2 == 0) for index in starts_b]
    info_a = {"sessions": [{"versions": {"mujoco": "3.3.0"}, "began": "then"}], "config": {"seed": 1}}
    info_b = {"sessions": [{"versions": {"mujoco": "3.4.0"}, "began": "now"}], "config": {"seed": 1}}
    return write_made_run(tmp_path / "a", a, info=info_a), write_made_run(tmp_path / "b", b, info=info_b)


def test_runs_that_share_starts_are_compared_as_pairs(tmp_path: Path) -> None:
    comparison = compare(*_two_runs(tmp_path, range(20), "q"))
    (item,) = comparison["comparisons"]
    assert (item["kind"], item["a"], item["b"], item["n"]) == ("paired", "p", "q", 20)
    assert (item["only_a"], item["only_b"]) == (10, 2)
    assert item["p"] == stats.mcnemar(10, 2).p
    assert len(item["discordant"]) == 12
    assert item["conclusion"].startswith("A succeeds more often than B: +40 points over 20 pairs")
    assert comparison["differences"] == [{"what": "versions.mujoco", "a": "3.3.0", "b": "3.4.0"}]
    text = _printed(print_comparison, comparison)
    assert "Compared as paired" in text
    assert "versions.mujoco: 3.3.0 | 3.4.0" in text


def test_runs_with_other_starts_are_compared_as_independent_and_say_so(tmp_path: Path) -> None:
    (item,) = compare(*_two_runs(tmp_path, range(100, 120)))["comparisons"]
    assert (item["kind"], item["why"]) == ("unpaired", "the runs share no start and noise")
    assert item["p"] == stats.barnard(18, 20, 10, 20).p
    interval = stats.unpaired_difference(18, 20, 10, 20)
    assert item["newcombe"] == [interval.low, interval.high]


def test_without_a_difference_the_comparison_says_how_many_more_episodes_one_needs(tmp_path: Path) -> None:
    a, _ = _two_runs(tmp_path, range(20))
    (item,) = compare(a, a, detect=0.05)["comparisons"]
    assert item["difference"] == 0.0
    assert item["conclusion"].startswith("No difference is shown: 0 points over 20 pairs")
    assert f"{item['plan']['more']} more pairs would show a difference of 5 points" in item["conclusion"]
    assert item["plan"]["needed"] == item["plan"]["more"] + 20


def test_runs_with_nothing_in_common_are_refused(tmp_path: Path) -> None:
    a, _ = _two_runs(tmp_path, range(20))
    other_task = write_made_run(tmp_path / "c", [made_episode(made_rollout("p", "elsewhere", 0), True)])
    with pytest.raises(ConfigError, match="no task in common: the first has t; the second has elsewhere"):
        compare(a, other_task)
    two = write_made_run(tmp_path / "d", made_episodes({"x": 0.5, "y": 0.5}, ["t"], 3))
    with pytest.raises(ConfigError, match="no policy name in common; the first run has: p; the second has: x, y"):
        compare(a, two)
    assert compare(a, two, {"p": "y"})["comparisons"][0]["b"] == "y"
    with pytest.raises(ConfigError, match="unknown policy 'z'"):
        compare(a, two, {"p": "z"})
