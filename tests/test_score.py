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


def _shard(run: Run) -> tuple[Path, str, int]:
    """A trace file, and the id and table row of an episode in it that succeeded."""
    path = sorted((run.path / "traces").glob("*.h5"))[0]
    with h5py.File(path) as file:
        row = int(np.flatnonzero(file["episodes/success"][...])[0])
        return path, file["episodes/id"][row].decode(), row


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
    path, name, row = _shard(copy)
    with h5py.File(path, "r+") as file:
        rollouts = file["episodes/rollout"]
        rollouts[row] = json.dumps({**json.loads(rollouts[row]), "policy": "better"})
    with pytest.raises(TraceError, match=name):
        score(copy)


def test_a_trace_file_that_is_gone_is_an_error_that_names_an_episode(copy: Run) -> None:
    path, _, _ = _shard(copy)
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
    assert item["conclusion"].startswith("A succeeds more often than B, by 40 points over 20 pairs (95 % interval +")
    (difference,) = comparison["differences"]
    assert difference["text"] == "version of mujoco: 3.3.0 in A, 3.4.0 in B"
    text = _printed(print_comparison, comparison)
    assert "Compared as paired" in text
    assert difference["text"] in text
    assert "Only A succeeded on 10, only B on 2" in text
    assert text.count(": only A") + text.count(": only B") == 5
    assert "… and 7 more" in text


def test_a_comparison_reads_from_the_side_of_the_better(tmp_path: Path) -> None:
    a, b = _two_runs(tmp_path, range(20), "q")
    (item,) = compare(b, a)["comparisons"]
    assert item["difference"] == -0.4
    assert item["conclusion"].startswith("B succeeds more often than A, by 40 points over 20 pairs (95 % interval +")


def test_a_comparison_tells_each_task_and_then_all(tmp_path: Path) -> None:
    runs = [
        write_made_run(tmp_path / name, made_episodes({name: rate}, ["pick", "push"], 12))
        for name, rate in (("good", 0.9), ("bad", 0.3))
    ]
    (item,) = compare(*runs)["comparisons"]
    assert [row["task"] for row in item["tasks"]] == ["pick", "push"]
    for row in item["tasks"]:
        won = [sum(e.succeeded for e in run if e.rollout.start.task == row["task"]) for run in runs]
        assert [row["rate_a"]["successes"], row["rate_b"]["successes"]] == won
        assert row["difference"] == pytest.approx((won[0] - won[1]) / 12)
        assert row["newcombe"][0] <= row["difference"] <= row["newcombe"][1]
    for width in (80, 120):
        text = _printed(print_comparison, compare(*runs), width)
        table = text[: text.index("Compared as")]
        assert [line.split()[0] for line in table.splitlines() if "/12" in line] == ["pick", "push"]
        assert "all tasks" in table
        assert f"{item['rate_a']['successes']}/24" in table


def test_one_task_is_one_row(tmp_path: Path) -> None:
    runs = [write_made_run(tmp_path / name, made_episodes({name: 0.5, "r": 0.2}, ["t"], 12)) for name in ("p", "q")]
    for text in (
        _printed(print_table, score(runs[0])),
        _printed(print_comparison, compare(*runs, policy_a="p", policy_b="q")).partition("Compared as")[0],
    ):
        assert text.count("/12") == 2
        assert "all tasks" not in text
        assert "p\u00a0=" in text


def test_policies_of_one_name_are_told_apart_by_what_differs(tmp_path: Path) -> None:
    def recorded(name: str, **settings: Any) -> Run:
        identity = f"P/1 {json.dumps({'size': 3, **settings})}"
        info = {"config": {"policy": settings}, "policies": {"world": {"p": identity}}}
        return write_made_run(tmp_path / name, made_episodes({"p": 0.5}, ["t"], 12), info=info)

    few = compare(recorded("a", sigma=0.1), recorded("b", sigma=0.2))
    assert [few["comparisons"][0][side] for side in "ab"] == ["p, policy.sigma=0.1", "p, policy.sigma=0.2"]
    assert [item["text"] for item in few["differences"]] == ["setting policy.sigma: 0.1 in A, 0.2 in B"]
    assert "size" not in _printed(print_comparison, few)
    many = compare(recorded("c", x=1, y=1, z=1), recorded("d", x=2, y=2, z=2))
    assert [many["comparisons"][0][side] for side in "ab"] == ["p in c", "p in d"]


def test_one_name_is_enough_where_the_other_run_has_one_policy(tmp_path: Path) -> None:
    one = write_made_run(tmp_path / "one", made_episodes({"p": 0.5}, ["t"], 6))
    two = write_made_run(tmp_path / "two", made_episodes({"x": 0.5, "y": 0.5}, ["t"], 6))
    assert [item["b"] for item in compare(one, two, policy_b="y")["comparisons"]] == ["y"]
    assert [item["a"] for item in compare(two, one, "x")["comparisons"]] == ["x"]
    with pytest.raises(ConfigError, match="name one of each by --policy-a and --policy-b"):
        compare(two, one, policy_b="p")
    with pytest.raises(ConfigError, match="unknown policy 'z'; available: x, y"):
        compare(one, two, policy_b="z")


def test_arms_are_compared_with_those_of_the_same_condition_or_the_difference_is_named(tmp_path: Path) -> None:
    def run(name: str, *levels: float) -> Run:
        plain = [made_rollout(name, "t", index) for index in range(8)]
        heavy = [
            replace(rollout, perturbations=(Perturbation("dynamics.mass", level),) if level else ())
            for rollout in plain
            for level in levels
        ]
        return write_made_run(tmp_path / f"{name}{levels}", [made_episode(rollout, True) for rollout in heavy])

    both = compare(run("p", 0, 2), run("q", 0, 2))["comparisons"]
    assert [(item["a"], item["b"]) for item in both] == [
        ("p · nominal", "q · nominal"),
        ("p · dynamics.mass 2", "q · dynamics.mass 2"),
    ]
    (apart,) = compare(run("p", 0), run("p", 2))["comparisons"]
    assert (apart["a"], apart["b"]) == ("p · nominal", "p · dynamics.mass 2")


def test_how_many_more_pairs_it_takes_is_said_with_its_assumption_or_not_at_all(tmp_path: Path) -> None:
    a = [made_episode(made_rollout("p", "t", index), index % 4 != 0) for index in range(20)]
    b = [made_episode(made_rollout("q", "t", index), index % 4 != 1) for index in range(20)]
    runs = [write_made_run(tmp_path / name, episodes) for name, episodes in (("a", a), ("b", b))]
    (item,) = compare(*runs)["comparisons"]
    assert item["plan"]["discordance"] == 0.5
    assert item["plan"]["needed"] == stats.pairs_needed(0.1, 0.5) == item["plan"]["more"] + 20
    assert "No difference is shown: A and B succeed equally often over 20 pairs" in item["conclusion"]
    assert "if outcomes go on to differ on 50 % of pairs, as they do here" in item["conclusion"]
    assert (
        "with power 0.8, if outcomes go on to differ on 50 % of pairs, as they do here, takes about "
        in (item["conclusion"])
    )
    (same,) = compare(runs[0], runs[0])["comparisons"]
    assert same["plan"] is None
    assert "power" not in same["conclusion"]


def test_a_run_compared_with_itself_is_said_to_be(tmp_path: Path) -> None:
    a, _ = _two_runs(tmp_path, range(20))
    (item,) = compare(a, a)["comparisons"]
    assert item["notes"] == ["A and B are the same episodes: a run is compared with itself"]
    assert item["conclusion"].startswith("No difference is shown: A and B succeed equally often over 20 pairs")
    assert item["notes"][0] in _printed(print_comparison, compare(a, a))


def test_equal_rollouts_that_ended_differently_are_said_to_have(tmp_path: Path) -> None:
    (item,) = compare(*_two_runs(tmp_path, range(20)))["comparisons"]
    assert "20 rollouts are asked for in the same words in both runs (equal ids)" in item["notes"][0]
    assert "12 with the opposite outcome" in item["notes"][0]


def test_equal_rollouts_that_ended_differently_are_laid_to_what_the_runs_differ_in(tmp_path: Path) -> None:
    a, b = _two_runs(tmp_path, range(20))
    info = json.loads((b.path / "run.json").read_text())
    for changed, told in (
        ({}, "the one difference between the runs is version of mujoco: 3.3.0 in A, 3.4.0 in B"),
        ({"hardware": {"machine": "other"}}, "the runs differ in 2 things, which are listed"),
        ({"sessions": [{"versions": {"mujoco": "3.3.0"}}]}, "a policy or a world has changed under its name"),
    ):
        (b.path / "run.json").write_text(json.dumps({**info, **changed}))
        assert told in compare(a, Run(b.path))["comparisons"][0]["notes"][0]


def test_horizons_that_differ_between_the_runs_are_said_to(tmp_path: Path) -> None:
    runs = [
        write_made_run(tmp_path / str(h), [made_episode(made_rollout("p", "t", i, horizon=h), True) for i in range(4)])
        for h in (100, 200)
    ]
    (item,) = compare(*runs)["comparisons"]
    assert item["notes"] == ["the horizon is 100 in A and 200 in B on t"]


def test_runs_with_other_starts_are_compared_as_independent_and_say_so(tmp_path: Path) -> None:
    (item,) = compare(*_two_runs(tmp_path, range(100, 120)))["comparisons"]
    assert (item["kind"], item["why"]) == ("unpaired", "the runs share no start and noise")
    assert item["p"] == stats.barnard(18, 20, 10, 20).p
    interval = stats.unpaired_difference(18, 20, 10, 20)
    assert item["newcombe"] == [interval.low, interval.high]


def test_runs_with_nothing_in_common_are_refused(tmp_path: Path) -> None:
    a, _ = _two_runs(tmp_path, range(20))
    other_task = write_made_run(tmp_path / "c", [made_episode(made_rollout("p", "elsewhere", 0), True)])
    with pytest.raises(ConfigError, match="no task in common: the first has t; the second has elsewhere"):
        compare(a, other_task)
    two = write_made_run(tmp_path / "d", made_episodes({"x": 0.5, "y": 0.5}, ["t"], 3))
    with pytest.raises(ConfigError, match="not clear what to compare; the first run has: p; the second has: x, y"):
        compare(a, two)
    assert compare(a, two, "p", "y")["comparisons"][0]["b"] == "y"
