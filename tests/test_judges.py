"""Judges' verdicts lie beside a run, go on where they stopped, and are held against the truth where it is known."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from judges.own import Own
from simeval.cli import main
from simeval.episode import Episode
from simeval.errors import ConfigError, TraceError
from simeval.judge import Judge, Verdict
from simeval.judge_analysis import SAME_ACTIONS, SAME_START, Judged, audit, audits
from simeval.outcomes import read_outcomes
from simeval.reader import Run
from simeval.report import report
from simeval.score import score
from simeval.testing.runs import made_episode, made_rollout, write_made_run
from simeval.verdicts import judge_run, read_verdicts
from simeval.versions import RECORDED, STILL, player


class Scripted(Judge):
    """Says what it was told to say of each rollout, and keeps count."""

    def __init__(self, said: dict[str, bool | None], fingerprint: str = "scripted/1", stops_after: int = 10**9):
        self._said, self._fingerprint, self._stops_after = said, fingerprint, stops_after
        self.asked: list[str] = []

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    def __call__(self, episode: Episode) -> Verdict:
        if len(self.asked) == self._stops_after:
            raise KeyboardInterrupt
        self.asked.append(episode.id)
        said = self._said[episode.id]
        return Verdict(said, None if said is None else 0.9 if said else 0.2, reason="cannot tell" * (said is None))


def recorded(folder: Path, succeed: Iterable[bool], world: str = "world") -> Run:
    episodes = [made_episode(made_rollout("p", "reach", i, world=world), good) for i, good in enumerate(succeed)]
    return write_made_run(folder, episodes)


def truth_of(run: Run) -> dict[str, bool | None]:
    return {episode.id: episode.succeeded for episode in run}


def digest(folder: Path) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and "judges" not in path.parts)
    return hashlib.sha256(b"".join(str(path).encode() + path.read_bytes() for path in files)).hexdigest()


def test_verdicts_are_kept_by_rollout_and_the_run_is_left_as_it_was(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", [True, False, True])
    before = digest(run.path)
    said = truth_of(run)
    assert {id_: v.success for id_, v in judge_run(run, Scripted(said), "j", ["world"], {}).items()} == said
    assert {id_: v.success for id_, v in read_verdicts(run, "j").items()} == said
    assert digest(run.path) == before


def test_a_judge_goes_on_where_it_stopped_and_asks_again_where_it_came_to_no_verdict(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", [True, False, True, True])
    first, second, third, fourth = run.requested
    with pytest.raises(KeyboardInterrupt):
        judge_run(run, Scripted({**truth_of(run), second: None}, stops_after=3), "j", ["world"], {})
    with open(run.path / "judges" / "j" / "verdicts.jsonl", "a") as file:
        file.write('{"id": "cut sho')
    judge = Scripted(truth_of(run))
    verdicts = judge_run(run, judge, "j", ["world"], {})
    assert judge.asked == [second, fourth]
    assert [verdicts[each].success for each in (first, second, third, fourth)] == [True, False, True, True]


def test_another_judge_of_the_same_name_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", [True])
    judge_run(run, Scripted(truth_of(run)), "j", ["world"], {})
    before = (run.path / "judges" / "j" / "verdicts.jsonl").read_bytes()
    with pytest.raises(ConfigError, match="another judge"):
        judge_run(run, Scripted(truth_of(run), "scripted/2"), "j", ["world"], {})
    assert (run.path / "judges" / "j" / "verdicts.jsonl").read_bytes() == before


def test_a_judge_that_cannot_judge_leaves_nothing_behind(tmp_path: Path) -> None:
    run = write_made_run(tmp_path / "run", [made_episode(made_rollout("p", "reach", 0), True, success_hold=0)])
    with pytest.raises(ConfigError, match="records no success"):
        judge_run(run, Own(), "own", ["world"], {})
    assert not (run.path / "judges").exists()


def test_verdicts_on_another_run_and_altered_ones_are_refused(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", [True])
    folder = judge_run(run, Scripted(truth_of(run)), "j", ["world"], {}).folder
    (folder / "verdicts.jsonl").write_text('{"id": "x", "success": "yes", "probability": 1, "votes": null}\n')
    with pytest.raises(TraceError, match="line 1 is no verdict"):
        read_verdicts(run, "j")
    info = json.loads((folder / "judge.json").read_text())
    (folder / "judge.json").write_text(json.dumps({**info, "run_id": "other"}))
    with pytest.raises(TraceError, match="verdicts on another run"):
        read_verdicts(run, "j")


def test_errors_and_what_was_never_run_are_not_judged(tmp_path: Path) -> None:
    good, bad, pending = (made_rollout("p", "reach", i) for i in range(3))
    run = write_made_run(
        tmp_path / "run", [made_episode(good, True), made_episode(bad, False, error="boom")], pending=[pending]
    )
    assert list(judge_run(run, Own(), "own", ["world"], {})) == [good.id]


# The audit


def judged(pairs: list[tuple[float | None, bool]]) -> list[Judged]:
    return [
        Judged(Verdict(None if p is None else p > 0.5, p), true, "t", "p", start)
        for start, (p, true) in enumerate(pairs)
    ]


def test_an_audit_counts_what_was_judged_rightly_of_successes_and_failures() -> None:
    found = audit(judged([(0.9, True)] * 6 + [(0.1, True)] * 2 + [(0.8, False)] * 1 + [(0.2, False)] * 11))
    assert found["confusion"] == {
        "true_positive": 6,
        "false_negative": 2,
        "false_positive": 1,
        "true_negative": 11,
    }
    assert found["sensitivity"]["estimate"] == pytest.approx(6 / 8)
    assert found["specificity"]["estimate"] == pytest.approx(11 / 12)
    assert found["accuracy"]["estimate"] == pytest.approx(17 / 20)
    low, high = found["accuracy"]["interval"]
    assert low < 17 / 20 < high
    rate = found["rate"]
    assert (rate["true"], rate["judged"]) == (pytest.approx(8 / 20), pytest.approx(7 / 20))
    assert rate["off"]["estimate"] == pytest.approx(-1 / 20)


def test_probabilities_that_come_true_as_often_as_they_say_are_calibrated_and_others_are_not() -> None:
    told = [(0.25, index % 4 == 0) for index in range(40)] + [(0.75, index % 4 != 0) for index in range(40)]
    calibrated = audit(judged(told))["calibration"]
    assert calibrated["ece"] == pytest.approx(0.0)
    assert calibrated["brier"]["estimate"] == pytest.approx(0.25 * 0.75)
    assert calibrated["brier_of_base_rate"] == pytest.approx(0.25)
    assert [(each["n"], each["true"]) for each in calibrated["bins"]] == [(40, 0.25), (40, 0.75)]
    overconfident = audit(judged([(0.99 if p > 0.5 else 0.01, true) for p, true in told]))["calibration"]
    assert overconfident["ece"] == pytest.approx(0.24)
    assert overconfident["brier"]["estimate"] > calibrated["brier"]["estimate"]


def test_an_episode_without_a_verdict_is_no_failure() -> None:
    found = audit(judged([(None, True), (0.9, True), (None, False)]))
    assert found["undecided"] == {"succeeded": 1, "failed": 1}
    assert found["n"] == 1
    assert found["sensitivity"]["estimate"] == 1.0
    assert found["specificity"] is None
    assert audit(judged([(None, True)]))["rate"] is None


def test_an_audit_says_of_which_tasks_and_policies_a_judge_knows_nothing() -> None:
    easy = [Judged(Verdict(good, None), good, "easy", "p", start) for start, good in enumerate([True, False] * 5)]
    hard = [Judged(Verdict(True, None), good, "hard", "q", start) for start, good in enumerate([True, False] * 5)]
    found = audit([*easy, *hard])
    for name, (sure, blind) in {"task": ("easy", "hard"), "policy": ("p", "q")}.items():
        rows = {row[name]: row for row in found["tasks" if name == "task" else "policies"]}
        assert rows[sure]["specificity"]["estimate"] == 1.0
        assert rows[blind]["specificity"]["estimate"] == 0.0
        assert rows[blind]["off"]["estimate"] == pytest.approx(0.5)


def test_episodes_that_share_a_start_widen_the_interval() -> None:
    apart = [Judged(Verdict(good, None), True, "t", "p", start) for start, good in enumerate([True, False] * 20)]
    alike = [Judged(each.verdict, True, "t", "p", index % 2) for index, each in enumerate(apart)]
    wide, narrow = (audit(each)["accuracy"]["interval"] for each in (alike, apart))
    assert wide[1] - wide[0] > 1.5 * (narrow[1] - narrow[0])


def test_an_imagined_episode_is_held_against_the_simulators_and_made_up_actions_against_none(tmp_path: Path) -> None:
    def episodes(world: str, policy: str, good: list[bool]) -> list[Episode]:
        return [made_episode(made_rollout(policy, "reach", i, world=world), each) for i, each in enumerate(good)]

    run = write_made_run(
        tmp_path / "run",
        [
            *episodes("sim", "p", [True, True, False, False]),
            *episodes("model", "p", [True, False, True, False]),
            *episodes("model", player("p", RECORDED), [True, True, True, False]),
            *episodes("model", player("p", STILL), [False] * 4),
        ],
    )
    verdicts = judge_run(run, Own(), "own", ["model"], {})
    found = {each["against"]: each for each in audits(read_outcomes(run), verdicts, ["sim"])}
    assert found.keys() == {SAME_START, SAME_ACTIONS}
    assert set(found[SAME_START]["confusion"].values()) == {1}
    assert found[SAME_ACTIONS]["confusion"] == {
        "true_positive": 2,
        "false_negative": 0,
        "false_positive": 1,
        "true_negative": 1,
    }


# Scores and report by a judge


def test_a_run_is_scored_by_a_judge_beside_its_own_scores(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", [True, True, True, False])
    own = score(run)
    first, second, *_ = run.requested
    said = {**truth_of(run), first: False, second: None}
    judge_run(run, Scripted(said), "strict", ["world"], {})
    scores = score(run, judge="strict")
    assert (scores["overall"]["n"], scores["overall"]["successes"]) == (3, 1)
    assert [each["id"] for each in scores["not_counted"]] == [second]
    assert "strict came to no verdict: cannot tell" in scores["not_counted"][0]["detail"]
    assert "Rule: success by the verdict of strict" in scores["headline"]
    assert json.loads((run.path / "scores.json").read_text()) == json.loads(json.dumps(own))
    assert json.loads((run.path / "judges/strict/scores.json").read_text())["overall"]["successes"] == 1


def test_a_judge_gives_success_to_a_world_that_defines_none(tmp_path: Path) -> None:
    run = write_made_run(
        tmp_path / "run", [made_episode(made_rollout("p", "run", i), i > 0, success_hold=0) for i in range(3)]
    )
    judge_run(run, Scripted(dict.fromkeys(run.requested, True)), "kind", ["world"], {})
    assert score(run)["overall"]["measure"] == "return"
    assert score(run, judge="kind")["overall"]["rate"] == 1.0


def test_worlds_that_were_not_judged_keep_what_was_recorded(tmp_path: Path) -> None:
    sides = [made_episode(made_rollout("p", "reach", i, world=w), True) for w in ("a", "b") for i in range(3)]
    run = write_made_run(tmp_path / "run", sides)
    judge_run(run, Scripted(dict.fromkeys(run.requested, False)), "no", ["b"], {})
    scores = score(run, judge="no")
    assert {arm["world"]: arm["rate"] for arm in scores["arms"]} == {"a": 1.0, "b": 0.0}
    assert "in a: as recorded" in scores["rule"]["success"]


def test_models_are_held_against_what_their_world_recorded_whoever_judged_it(tmp_path: Path) -> None:
    sides = [made_episode(made_rollout("p", "reach", i, world=w), True) for w in ("sim", "model") for i in range(3)]
    protocol = {"_target_": "simeval.fidelity.Fidelity", "truth": "sim"}
    run = write_made_run(tmp_path / "run", sides, info={"config": {"protocol": protocol}})
    judge_run(run, Scripted(dict.fromkeys(run.requested, False)), "no", ["sim", "model"], {})
    (row,) = score(run, judge="no")["fidelity"][0]["policies"]
    assert (row["truth"]["estimate"], row["model"]["estimate"]) == (1.0, 0.0)


def test_a_report_by_a_judge_lies_with_its_verdicts(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", [True, False])
    judge_run(run, Scripted(dict.fromkeys(run.requested, False)), "no", ["world"], {})
    page = report(run, judge="no")
    assert page == run.path / "judges" / "no" / "report.html"
    assert "by the verdict of no" in page.read_text()
    assert not (run.path / "report.html").exists()


# The command


def test_the_command_judges_audits_and_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = recorded(tmp_path / "run", [True, True, False])
    assert main(["judge", str(run.path), "judge=own"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "sensitivity 100 %" in printed
    assert "own on world: 3 verdicts." in printed
    written = json.loads((run.path / "judges/own/audit.json").read_text())
    assert written["audits"][0]["confusion"]["true_positive"] == 2
    assert main(["score", str(run.path), "--judge", "own"]) == 0
    assert main(["report", str(run.path), "--judge", "own"]) == 0


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ([], "no judge is chosen; choose one by judge=…: "),
        (["judge=owm"], "did you mean own"),
        (["judge=own", "worlds=[x]"], "unknown world of the run in worlds 'x'"),
        (["judge=own", "truth=x"], "unknown world of the run in truth 'x'"),
        (["judge=own", "name=../up"], "letters, digits, dots and dashes"),
        (["judge=own", "judge._target_=os.getcwd"], "is no Judge"),
    ],
)
def test_what_cannot_be_judged_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: list[str], told: str
) -> None:
    run = recorded(tmp_path / "run", [True])
    assert main(["judge", str(run.path), *settings]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line
    assert not (run.path / "judges").exists()


def test_a_judge_without_a_verdict_yet_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = recorded(tmp_path / "run", [True])
    assert main(["score", str(run.path), "--judge", "own"]) == 2
    assert "simeval judge" in capsys.readouterr().err
    assert np.all([episode.succeeded for episode in run])
