"""Worlds that define no success: no rate is made of their episodes, and returns take its place everywhere."""

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from rich.console import Console

from envs.gymnasium import GymnasiumWorld
from policies.basic import Constant
from simeval import stats
from simeval.cli import main
from simeval.cli.present import _chosen
from simeval.compare import compare
from simeval.episode import Episode
from simeval.errors import ConfigError
from simeval.protocols import together
from simeval.reader import Run
from simeval.report import report
from simeval.rollout import run as run_protocol
from simeval.score import score
from simeval.tables import print_comparison, print_table
from simeval.testing import ToySimulator, check_world, toy_policies
from simeval.testing.runs import made_episode, made_rollout, write_made_run
from simeval.types import Rollout


def made(
    world: str, tasks: Sequence[str], starts: range, hold: int = 0, policies: Sequence[str] = ("good", "bad")
) -> Iterator[Episode]:
    """Episodes in which the policy ``good`` has the higher return, and succeeds where ``hold`` defines success."""
    for task in tasks:
        for index in starts:
            for policy in policies:
                rollout = made_rollout(policy, task, index, world=world)
                yield made_episode(rollout, policy == "good", success_hold=hold, length=20 + index)


def printed(show: Any, data: dict[str, Any], width: int = 80) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    show(data, console)
    return console.export_text().replace("\u00a0", " ")


class Judgeless(ToySimulator):
    """The toy, whose goals are not for success: it stops at its horizon and nothing else."""

    success_hold = 0


class Silent(Judgeless):
    """It never says that its goal holds."""

    def step(self, slots: Any, actions: Any, keys: Any) -> Any:
        """See ``World.step``."""
        step = super().step(slots, actions, keys)
        step.success[:] = False
        return step

    def reset(self, slots: Any, starts: Any, keys: Any) -> Any:
        """See ``World.reset``."""
        step = super().reset(slots, starts, keys)
        step.success[:] = False
        return step

    def restore(self, slots: Any, snapshots: Any) -> Any:
        """See ``World.restore``."""
        step = super().restore(slots, snapshots)
        step.success[:] = False
        return step


def test_an_episode_of_a_world_without_success_neither_succeeds_nor_stops_early() -> None:
    world = Judgeless()
    rollouts = [Rollout(world.start(t, 0), seed=0, horizon=world.horizon(t), policy="expert") for t in world.tasks]
    for episode in run_protocol(together(rollouts), world, toy_policies()):
        assert not episode.succeeded
        assert not episode.ending.solved_at_reset
        assert episode.length == episode.rollout.horizon or episode.terminated[-1]


def test_the_conformance_suite_accepts_a_world_without_success_only_if_success_is_never_true() -> None:
    sentence = [
        "Observations, rewards, flags and signals fit their spaces",
        "It declares slots, tasks, spaces and a fingerprint",
    ]
    ran = "Episodes of random actions run"
    good = check_world(Silent, only=sentence)
    assert {check.name for check in good if check.passed} == {ran, *sentence}
    failed = [check for check in check_world(Loud, only=sentence) if not check.passed]
    assert len(failed) == 1
    assert "success is true, though success_hold is 0" in failed[0].detail


class Loud(Silent):
    """It defines no success, and reports one."""

    def step(self, slots: Any, actions: Any, keys: Any) -> Any:
        """See ``World.step``."""
        step = super().step(slots, actions, keys)
        step.success[:] = True
        return step


class Late(gymnasium.Env):
    """It speaks of success in its third step only."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    first = 3

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """See ``gymnasium.Env.reset``."""
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        """See ``gymnasium.Env.step``."""
        self.steps += 1
        return np.zeros(1, np.float32), 1.0, False, False, {"success": True} if self.steps >= self.first else {}


class Prompt(Late):
    """It speaks of success from its first step on."""

    first = 1


gymnasium.register("Late-v0", f"{__name__}:Late")
gymnasium.register("Prompt-v0", f"{__name__}:Prompt")


@pytest.mark.parametrize(
    ("id", "success", "hold"),
    [
        ("Pendulum-v1", None, 0),
        ("Prompt-v0", None, 1),
        ("Prompt-v0", False, 0),
        ("Late-v0", None, 0),
        ("Late-v0", True, 1),
    ],
)
def test_a_gymnasium_environment_defines_success_if_it_reports_it_or_is_said_to(
    id: str, success: bool | None, hold: int
) -> None:
    world = GymnasiumWorld(id, success=success)
    assert world.success_hold == hold
    (episode,) = run_protocol(
        together([Rollout(world.start(id, 0), seed=0, horizon=5, policy="constant")]),
        world,
        {"constant": Constant().bind(world.spec)},
    )
    assert episode.succeeded == (hold > 0)
    world.close()


def test_environments_that_report_success_and_others_do_not_share_a_world() -> None:
    with pytest.raises(ConfigError, match="Prompt-v0 report success and Late-v0 do not"):
        GymnasiumWorld(["Prompt-v0", "Late-v0"])
    assert GymnasiumWorld(["Prompt-v0", "Late-v0"], success=True).success_hold == 1


def test_no_rate_is_made_of_episodes_without_success_and_returns_take_its_place(tmp_path: Path) -> None:
    run = write_made_run(
        tmp_path / "run",
        made("gym", ["cheetah"], range(12)),
        pending=[made_rollout("good", "cheetah", 99, world="gym")],
    )
    assert run.episodes["success"].isna().all()
    scores = score(run)
    for row in (*scores["arms"], *scores["tasks"], scores["overall"]):
        assert row["measure"] == "return"
        assert row["rate"] is row["successes"] is row["wilson"] is row["with_errors"]["rate"] is None
    assert set(scores["arms"][0]["under_other_rules"].values()) == {None}
    good, bad = (
        {e.rollout.seed: e.total_reward for e in run if e.rollout.policy == policy} for policy in ("good", "bad")
    )
    (pair,) = scores["pairs"]
    gains = [good[seed] - bad[seed] for seed in good]
    assert pair["difference"] == pytest.approx(np.mean(gains))
    assert (pair["n"], pair["measure"], pair["test"]) == (12, "return", "sign-flip")
    assert pair["interval"][0] < pair["difference"] < pair["interval"][1]
    assert "%" not in scores["headline"].replace("95 %", "")
    assert scores["headline"].startswith("On the same 12 starts and noise, good has a higher return than bad by ")
    assert "world gym defines no success" in scores["headline"]
    text = printed(print_table, scores)
    assert "Mean return by task" in text
    assert "success rate" not in text
    assert "0/12" not in text


def test_a_run_that_mixes_worlds_keeps_rates_and_returns_apart(tmp_path: Path) -> None:
    episodes = [*made("arm", ["reach", "push"], range(8), hold=1), *made("gym", ["cheetah"], range(8))]
    scores = score(write_made_run(tmp_path / "mixed", episodes))
    measures = {arm["arm"]: (arm["measure"], arm["n"], arm["rate"]) for arm in scores["arms"]}
    assert measures == {
        "good": ("success", 16, 1.0),
        "bad": ("success", 16, 0.0),
        "good @ gym": ("return", 8, None),
        "bad @ gym": ("return", 8, None),
    }
    assert scores["overall"]["n"] == 32
    assert [(pair["a"], pair["measure"]) for pair in scores["pairs"]] == [("good", "success"), ("good @ gym", "return")]
    assert "good succeeded more often than bad by 100 points" in scores["headline"]
    assert "world gym defines no success" in scores["headline"]
    text = printed(print_table, scores)
    assert text.index("Success by task") < text.index("Mean return by task")
    assert report(Run(tmp_path / "mixed")).exists()


def test_a_world_without_success_is_compared_by_return_with_one_that_has_it(tmp_path: Path) -> None:
    episodes = [
        *made("simulator", ["reach"], range(8), hold=1, policies=["good"]),
        *made("model", ["reach"], range(8), policies=["good"]),
    ]
    scores = score(write_made_run(tmp_path / "fidelity", episodes))
    (pair,) = scores["pairs"]
    assert (pair["a"], pair["b"], pair["measure"]) == ("good @ simulator", "good @ model", "return")


def test_runs_without_success_are_compared_by_return_as_pairs_or_by_welch(tmp_path: Path) -> None:
    good = write_made_run(tmp_path / "good", made("gym", ["t"], range(10), policies=["good"]))
    bad = write_made_run(tmp_path / "bad", made("gym", ["t"], range(10), policies=["bad"]))
    comparison = compare(good, bad)
    (item,) = comparison["comparisons"]
    assert (item["kind"], item["test"], item["plan"]) == ("paired", "sign-flip", None)
    assert item["conclusion"].startswith("t: A has a higher return than B, by a mean of ")
    assert "Mean return" in printed(print_comparison, comparison)
    other = write_made_run(tmp_path / "other", made("gym", ["t"], range(50, 60), policies=["bad"]))
    (apart,) = compare(good, other)["comparisons"]
    returns = [[episode.total_reward for episode in run] for run in (good, other)]
    interval, test = stats.welch(*returns)
    assert (apart["kind"], apart["test"], apart["p"]) == ("unpaired", "Welch", test.p)
    assert apart["interval"] == [interval.low, interval.high]


def test_returns_of_different_tasks_are_never_averaged_or_compared_together(tmp_path: Path) -> None:
    episodes = list(made("gym", ["small", "large"], range(9)))
    for episode in episodes:
        if episode.rollout.start.task == "large":
            episode.source.arrays["reward"] *= 1000.0
            total = float(episode.source.arrays["reward"].sum())
            episode.ending = replace(episode.ending, summary=replace(episode.ending.summary, total_reward=total))
    run = write_made_run(tmp_path / "run", episodes)
    scores = score(run)
    assert [arm["return"] for arm in (*scores["arms"], scores["overall"])] == [None] * 3
    means = {(row["task"], row["arm"]): row["return"]["mean"] for row in scores["tasks"]}
    assert means["large", "good"] > 100 * means["small", "good"]
    assert [(pair["task"], pair["n"]) for pair in scores["pairs"]] == [("small", 9), ("large", 9)]
    for pair in scores["pairs"]:
        assert pair["difference"] == pytest.approx(means[pair["task"], "good"] - means[pair["task"], "bad"])
    assert "small: On the same 9 starts and noise" in scores["headline"]
    assert "large: On the same 9 starts and noise" in scores["headline"]
    assert "Holm over 2" in scores["headline"]
    text = printed(print_table, scores)
    assert "all tasks" not in text
    assert text.count("p =") >= 2
    assert [item["task"] for item in compare(run, run)["comparisons"]] == ["small", "large"] * 2
    assert report(run).exists()


def test_many_policies_have_a_table_of_returns_for_each_task(tmp_path: Path) -> None:
    names = [f"policy-{index}" for index in range(6)]
    run = write_made_run(tmp_path / "run", made("gym", ["small", "large"], range(4), policies=names))
    text = printed(print_table, score(run))
    assert "Mean return by policy on small" in text
    assert "Mean return by policy on large" in text
    assert all(text.count(name) >= 2 for name in names)


def test_the_lowest_and_the_highest_return_are_filmed_where_there_is_no_success(tmp_path: Path) -> None:
    run = write_made_run(tmp_path / "run", made("gym", ["t"], range(6), policies=["good"]))
    returns = {episode.id: episode.total_reward for episode in run}
    ranked = sorted(returns, key=returns.__getitem__)
    assert [episode.id for episode in _chosen(run, 1)] == [ranked[0], ranked[-1]]
    assert len(_chosen(run, 100)) == 6


def test_a_run_of_pendulum_reports_returns(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    settings = ["world.id=Pendulum-v1", "world.num_slots=4", "protocol.episodes=6", "protocol.horizon=30"]
    command = ["run", "world=gymnasium", "policy=uniform,constant", "protocol=paired", "report.videos=0", "run.dir=run"]
    assert main([*command, *settings]) == 0
    shown = " ".join(capsys.readouterr().out.replace("\u00a0", " ").split())
    assert "Mean return by task" in shown
    assert "world gymnasium defines no success" in shown
    scores = json.loads(Path("run/scores.json").read_text())
    assert scores["overall"]["rate"] is None
    assert {arm["n"] for arm in scores["arms"]} == {6}
    assert "defines no success" in Path("run/report.html").read_text()


def test_an_interval_that_the_exact_test_does_not_bear_out_is_marked_and_claims_nothing(tmp_path: Path) -> None:
    scores = score(write_made_run(tmp_path / "tiny", made("w", ["t"], range(2), hold=1)))
    (pair,) = scores["pairs"]
    assert pair["p"] == 0.5
    assert pair["newcombe"][0] > 0
    assert pair["contested"]
    assert "no difference is shown" in scores["headline"]
    assert "it leaves out 0, but the test decides" in scores["headline"]
    text = " ".join(printed(print_table, scores).split())
    assert "[+7, +100]†" in text
    assert "† this interval leaves out 0, but the test, which decides, shows no difference" in text


@pytest.mark.parametrize("width", [80, 100])
def test_no_interval_is_broken_over_lines_in_a_table_of_two_policies(tmp_path: Path, width: int) -> None:
    tasks = ["button-press-topdown-v3", "reach"]
    episodes = made("w", tasks, range(60), hold=1, policies=["good", "noisy_expert"])
    text = printed(print_table, score(write_made_run(tmp_path / "wide", episodes)), width)
    rows = [line for line in text.split("all tasks")[0].splitlines() if "[" in line]
    table = text[: text.index("success rate")]
    assert all(line.count("[") == line.count("]") for line in table.splitlines())
    assert all(len(line.rstrip()) <= width for line in text.splitlines())
    assert rows
