"""A World against models of it: an exact one is trusted to the end, one that does not listen or move is not at all."""

import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from policies.noisy import ActionNoise
from simeval import folder
from simeval.errors import ConfigError
from simeval.fidelity import Fidelity
from simeval.fidelity_analysis import CONTROLS
from simeval.matching import fit
from simeval.noise import StepKey
from simeval.policy import Policy
from simeval.protocols import Setting
from simeval.reader import Run
from simeval.report import report
from simeval.rollout import Engine
from simeval.score import score
from simeval.store import RunStore
from simeval.tables import print_table
from simeval.testing import ToyExpert, ToySimulator
from simeval.types import Array, Start, TimeStep
from simeval.versions import version_of
from simeval.world import World
from simeval.wrappers import Delegate
from tests.test_report import Opened, browser  # noqa: F401 - a fixture


class Deaf(Delegate):
    """A copy that is never told what was done."""

    def step(self, slots: Sequence[int], actions: Array, keys: Sequence[StepKey]) -> TimeStep:
        return self.world.step(slots, np.zeros_like(actions), keys)


class Frozen(Delegate):
    """A copy in which nothing moves."""

    def step(self, slots: Sequence[int], actions: Array, keys: Sequence[StepKey]) -> TimeStep:
        return self.world.restore(slots, self.world.snapshot(slots))


class Drifting(Delegate):
    """A copy that is right for four steps, and then stands still."""

    def step(self, slots: Sequence[int], actions: Array, keys: Sequence[StepKey]) -> TimeStep:
        early = [row for row, key in enumerate(keys) if key.step <= 4]
        if early:
            self.world.step([slots[row] for row in early], actions[early], [keys[row] for row in early])
        return self.world.restore(slots, self.world.snapshot(slots))


SLOTS = 6
EPISODES, IMAGINED = 6, 6


def policies() -> dict[str, Policy]:
    return {
        "expert": ToyExpert(),
        "shaky": ActionNoise(ToyExpert(), 0.5),
        "shakier": ActionNoise(ToyExpert(), 1.5),
        "lost": ActionNoise(ToyExpert(), 6.0),
    }


def study(path: Path, models: Mapping[str, World], **settings) -> Run:
    worlds = {"truth": ToySimulator(SLOTS), **models}
    own = {name: policies() for name in worlds}
    setting = Setting(worlds, {name: list(named) for name, named in own.items()}, 0)
    design = Fidelity(episodes=EPISODES, tasks=[worlds["truth"].tasks[0]], **settings)
    for name, brought in design.policies(setting).items():
        own[name] |= {policy: fit(each, worlds[name].spec) for policy, each in brought.items()}
    bound = {name: {p: fit(each, worlds[name].spec) for p, each in named.items()} for name, named in own.items()}
    config = {"protocol": {"_target_": "simeval.fidelity.Fidelity", "truth": "truth"}, "worlds": dict.fromkeys(worlds)}
    store = RunStore(path, lock=folder.create(path, folder.Manifest(config, {}, {})))
    with Engine(worlds, bound, store) as engine:
        found = engine.run(design.protocol(setting))
        folder.end(path)
    assert len(found) == design.size(setting)
    assert {episode.status for episode in found} == {"done"}
    return Run(path)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    models = {
        "copy": ToySimulator(SLOTS),
        "deaf": Deaf(ToySimulator(SLOTS)),
        "frozen": Frozen(ToySimulator(SLOTS)),
        "drifting": Drifting(ToySimulator(SLOTS)),
    }
    return study(tmp_path_factory.mktemp("fidelity") / "run", models, imagined=IMAGINED)


@pytest.fixture(scope="module")
def studies(run: Run) -> dict[str, dict]:
    return {found["model"]: found for found in score(run)["fidelity"]}


def test_what_was_done_in_the_world_is_done_again_in_the_models(run: Run) -> None:
    truth = {
        (e.rollout.policy, e.rollout.start, e.rollout.seed): np.asarray(e.action)
        for e in run
        if e.rollout.world == "truth"
    }
    kinds = {"recorded": 0, "shuffled": 0, "still": 0}
    for episode in run:
        rollout, version = episode.rollout, version_of(episode.rollout.policy)
        if version is None:
            continue
        kinds[version] += 1
        was = truth[rollout.policy.removesuffix(f" ({version})"), rollout.start, rollout.seed]
        if version == "recorded":
            np.testing.assert_array_equal(episode.action, was)
        elif version == "shuffled":
            np.testing.assert_array_equal(np.sort(episode.action, axis=0), np.sort(was, axis=0))
        else:
            assert not episode.action.any()
    assert min(kinds.values()) == max(kinds.values()) == 4 * len(truth)


def test_an_exact_model_is_trusted_to_the_end_and_ranks_as_the_truth_does(studies: dict[str, dict]) -> None:
    found = studies["copy"]
    assert max(found["open_loop"]["mean"]["recorded"]) == 0
    assert found["trusted"]["ended_by"] is None
    assert found["trusted"]["steps"] >= 10
    assert found["agreement"]["pearson"]["estimate"] == pytest.approx(1)
    assert found["agreement"]["mmrv"]["estimate"] == found["agreement"]["mean_gap"]["estimate"] == 0
    assert found["agreement"]["p"] <= 2 / 24
    for row in found["policies"]:
        assert row["truth"] == row["model"]
        assert row["same_outcome"] == 1
        assert row["imagined"] == IMAGINED
    assert max(row["combined"]["worth"] for row in found["policies"]) > 1.3


@pytest.mark.parametrize(("model", "control"), [("deaf", "still"), ("frozen", "persistence")])
def test_a_model_that_does_not_listen_or_move_is_not_trusted_for_a_step(
    studies: dict[str, dict], model: str, control: str
) -> None:
    found = studies[model]
    assert found["trusted"]["steps"] == 0
    assert control in CONTROLS
    curves = found["open_loop"]["mean"]
    np.testing.assert_allclose(curves["recorded"], curves[control])
    assert np.abs(curves["sensitivity"]).max() == 0
    pearson = found["agreement"]["pearson"]["estimate"]
    assert pearson is None or found["agreement"]["p"] > 0.2


def test_a_model_that_goes_wrong_is_trusted_until_then(studies: dict[str, dict]) -> None:
    found = studies["drifting"]
    curve = np.array(found["open_loop"]["mean"]["recorded"])
    assert curve[:4].max() == 0
    assert curve[5] > 0
    assert 4 <= found["trusted"]["steps"] < studies["copy"]["trusted"]["steps"]


def test_repetitions_are_no_policies_in_the_tables_and_every_model_has_its_verdict(run: Run) -> None:
    scores = score(run)
    assert not [arm for arm in scores["arms"] if version_of(arm["policy"])]
    out = io.StringIO()
    print_table(scores, Console(file=out, width=120))
    printed = " ".join(out.getvalue().split())
    assert "copy can be trusted for" in printed
    assert "deaf can be trusted for 0 steps of truth" in printed
    assert "(recorded)" not in printed


def test_the_tables_fit_eighty_columns_and_cut_nothing_off(run: Run) -> None:
    out = io.StringIO()
    print_table(score(run), Console(file=out, width=80))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert not [line for line in lines if "…" in line]
    for number in re.findall(r"\[[^]]*", out.getvalue()):
        assert "\n" not in number or "%" in number, f"an interval is broken: {number}"


def test_a_study_without_a_model_or_with_other_policies_or_actions_is_refused(tmp_path: Path) -> None:
    names = list(policies())
    with pytest.raises(ConfigError, match="only 'truth' is here"):
        Fidelity(episodes=2).size(Setting({"truth": ToySimulator(SLOTS)}, {"truth": names}, 0))
    worlds = {"truth": ToySimulator(SLOTS), "copy": ToySimulator(SLOTS)}
    with pytest.raises(ConfigError, match="policies act in all worlds"):
        Fidelity(episodes=2).size(Setting(worlds, {"truth": names, "copy": names[:1]}, 0))
    with pytest.raises(ConfigError, match=r"protocol\.truth"):
        Fidelity(episodes=2, truth="nowhere").size(Setting(worlds, dict.fromkeys(worlds, names), 0))
    other = ToySimulator(SLOTS)
    other.action_space = type(other.action_space)(-2, 2, (2,), np.float32)
    with pytest.raises(ConfigError, match="a model is of one World"):
        Fidelity(episodes=2).size(Setting({**worlds, "copy": other}, dict.fromkeys(worlds, names), 0))


@pytest.mark.browser
def test_the_report_shows_rates_agreement_and_the_error_of_every_model(run: Run, browser: Any) -> None:  # noqa: F811
    pytest.importorskip("playwright.sync_api", reason="the browser test needs playwright")
    report(run)
    opened = Opened(browser, run, viewport={"width": 1280, "height": 900})
    assert opened.page.locator("#closed-loop tbody tr").count() == len(policies())
    rows = opened.page.locator("#agreement tbody tr").all_inner_texts()
    assert [row.split()[0] for row in rows] == ["copy", "deaf", "frozen", "drifting"]
    assert rows[0].split()[1:5] == ["1.00", "1.00", "0.00", "0"]
    rules = opened.page.inner_text("#rules")
    assert rules.count("only one side asked for this start") <= 2
    assert "those from further starts too" in opened.page.inner_text("#other-rules")
    assert opened.page.locator("#open-loop svg polyline").count() == 4 * 4
    assert "deaf: trusted for 0 steps" in opened.page.locator("#open-loop").inner_text()
    assert opened.complaints == []
    opened.page.context.close()


class Few(Delegate):
    """A copy that has the first starts of a task alone."""

    def check_start(self, start: Start) -> None:
        if start not in self.world.starts(start.task, 4, 0):
            raise ConfigError("none of the four")


def test_a_world_that_lacks_starts_of_its_model_is_named_before_anything_runs() -> None:
    worlds: dict[str, World] = {"few": Few(ToySimulator(1)), "copy": ToySimulator(1)}
    setting = Setting(worlds, {name: ["expert"] for name in worlds}, 0)
    assert Fidelity(episodes=4, truth="few").size(setting)
    told = r"cannot begin in world 'few' where they do in 'copy' \(none of the four\).*protocol.truth=few is the World"
    with pytest.raises(ConfigError, match=told):
        Fidelity(episodes=5, truth="few").size(setting)
