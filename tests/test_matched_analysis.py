"""The numbers of a matched study: counted by hand on small runs, and against a simulated truth on many."""

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from simeval import interaction, stats
from simeval.allocation import Beliefs
from simeval.compare import compare
from simeval.noise import Key
from simeval.reader import Run
from simeval.score import score
from simeval.tables import print_comparison, print_table
from simeval.testing.runs import made_episode, made_rollout, write_made_run
from simeval.types import Perturbation, Rollout

AXES = ("camera", "actuation")
LEVELS = (2.0, 4.0)
STUDIES = 1000
MONTE_CARLO = 3 * np.sqrt(0.05 * 0.95 / STUDIES)
"""Three standard errors of a coverage of 95 % that was measured on so many studies."""


def perturbation(axis: str, level: float, number: int = 0, **params: Any) -> Perturbation:
    return Perturbation(axis, level, {"gain": number + level, **params})


def rollouts(starts: int, configurations: int = 1, policy: str = "p") -> list[Rollout]:
    """Nominal, two axes alone and at once at two severities, and a replication, of every start."""
    found = []
    for index in range(starts):
        plain = made_rollout(policy, f"t{index % 2}", index)
        found += [plain, replace(plain, streams=(("policy", 7),))]
        for level in LEVELS:
            for number in range(configurations):
                alone = [(perturbation(axis, level, number),) for axis in AXES]
                found += [replace(plain, perturbations=p) for p in (*alone, alone[0] + alone[1])]
    return found


def recorded(folder: Path, asked: list[Rollout], succeeds: Callable[[Rollout], bool], **kinds: Any) -> Run:
    broken = kinds.get("broken", lambda rollout: False)
    return write_made_run(folder, [made_episode(r, succeeds(r), error="it broke" if broken(r) else "") for r in asked])


def axes_of(rollout: Rollout) -> tuple[str, ...]:
    return tuple(p.axis for p in rollout.perturbations)


def index_of(rollout: Rollout) -> int:
    return INDEX[rollout.start.seed]


INDEX = {made_rollout("p", f"t{i % 2}", i).start.seed: i for i in range(40)}


def by_rule(rollout: Rollout) -> bool:
    """Of starts 0 to 9 at severity 4: 0 to 3 fail only together, 4 and 5 only alone under actuation, 6 always."""
    index, axes = index_of(rollout), axes_of(rollout)
    if index == 6:
        return False
    if not axes or rollout.perturbations[0].level == 2.0:
        return not (rollout.streams and index == 9)
    if len(axes) == 2:
        return index not in (0, 1, 2, 3)
    return not (axes == ("actuation",) and index in (4, 5))


def study_of(run: Run) -> dict[str, Any]:
    (study,) = score(run)["matched"]
    return study


def combination(study: dict[str, Any], rank: int) -> dict[str, Any]:
    (row,) = [row for row in study["combinations"] if row["rank"] == rank]
    return row


def test_emergent_and_compensated_are_counted_instance_by_instance(tmp_path: Path) -> None:
    study = study_of(recorded(tmp_path / "run", rollouts(10), by_rule))
    assert (study["axes"], study["severities"], study["starts"]) == (list(AXES), ["2", "4"], 10)
    row = combination(study, 1)
    assert [row[k]["count"] for k in ("sim", "conj", "emergent", "compensated", "change")] == [5, 7, 4, 2, 6]
    assert row["hidden"]["count"] == 4
    assert row["hidden"]["n"] == 5
    net = row["interaction"]
    assert net["difference"] == pytest.approx(-0.2)
    assert net["p"] == net["mcnemar"] == stats.mcnemar(4, 2).p
    assert row["indep"]["estimate"] == pytest.approx(0.9 * 0.7)
    assert row["dependence"]["estimate"] == pytest.approx(0.7 - 0.63)
    assert row["total"]["estimate"] == pytest.approx(row["dependence"]["estimate"] + net["difference"])
    given = row["given_nominal"]
    assert (given["n"], given["emergent"]["count"], given["compensated"]["count"]) == (9, 4, 2)
    quiet = combination(study, 0)
    assert quiet["change"]["count"] == quiet["interaction"]["difference"] == 0


def test_each_axis_is_compared_with_the_nominal_run_of_the_same_start(tmp_path: Path) -> None:
    study = study_of(recorded(tmp_path / "run", rollouts(10), by_rule))
    row = next(row for row in study["rows"] if row["axis"] == "actuation" and row["rank"] == 1)
    assert (row["lost"], row["gained"], row["success"]["count"]) == (2, 0, 7)
    pair = stats.paired_difference(stats.PairedCounts(7, 0, 2, 1))
    assert [row["difference"], *row["interval"]] == pytest.approx([pair.estimate, pair.low, pair.high])
    assert row["kept"]["count"] / row["kept"]["n"] == pytest.approx(7 / 9)
    assert [row["p_holm"] for row in study["rows"]] == stats.holm([row["p"] for row in study["rows"]])
    assert {task: rate["n"] for task, rate in row["tasks"].items()} == {"t0": 5, "t1": 5}


def test_replication_is_set_against_what_changes(tmp_path: Path) -> None:
    study = study_of(recorded(tmp_path / "run", rollouts(10), by_rule))
    (replication,) = study["replications"]
    assert (replication["stream"], replication["flips"]["count"], replication["flips"]["n"]) == ("policy", 1, 10)
    row = combination(study, 1)
    assert row["excess"][0]["estimate"] == pytest.approx(0.6 - 0.1)
    success = np.concatenate([[True] * 9 + [False], [True] * 8 + [False] * 2]).mean()
    assert row["by_replication"][0]["change"] == pytest.approx(interaction.change_by_replication(success, 0.1, 2))
    assert study["nominal"]["n"] == 10  # the replication is no second nominal run


def test_errors_leave_their_instance_out_and_are_failures_in_the_other_denominator(tmp_path: Path) -> None:
    def broken(rollout: Rollout) -> bool:
        return index_of(rollout) == 8 and len(rollout.perturbations) == 2 and rollout.perturbations[0].level == 4

    study = study_of(recorded(tmp_path / "run", rollouts(10), by_rule, broken=broken))
    row = combination(study, 1)
    assert (row["n"], row["left_out"], study["errors"]) == (9, {"error": 1}, 1)
    assert (row["with_errors"]["n"], row["with_errors"]["emergent"]["count"]) == (10, 5)
    assert (row["success"]["n"], row["success"]["with_errors"]["n"]) == (9, 10)


def test_redraws_are_added_up_once_each(tmp_path: Path) -> None:
    plain = made_rollout("p", "t", 0)
    drawn = perturbation("initial_state.robot", 2.0, redraws=3), perturbation("camera", 2.0)
    asked = [replace(plain, perturbations=p) for p in ((), drawn[:1], drawn[1:], drawn)]
    study = study_of(recorded(tmp_path / "run", asked, lambda rollout: True))
    assert study["redraws"] == 3
    assert study["axes"] == ["initial_state.robot", "camera"]


def test_axes_of_one_name_are_told_apart_by_what_they_change(tmp_path: Path) -> None:
    asked = []
    for index in range(3):
        plain = made_rollout("p", "t", index)
        parts = [Perturbation("appearance", 2.0, {name: 1.0 + index}) for name in ("table", "wall")]
        asked += [replace(plain, perturbations=p) for p in ((), (parts[0],), (parts[1],), tuple(parts))]
    study = study_of(recorded(tmp_path / "run", asked, lambda rollout: len(rollout.perturbations) < 2))
    assert study["axes"] == ["appearance (table)", "appearance (wall)"]
    assert combination(study, 0)["emergent"]["count"] == 3


def test_configurations_of_one_start_are_one_cluster(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", rollouts(12, configurations=3), lambda r: not axes_of(r) or index_of(r) % 2 == 0)
    row = next(row for row in study_of(run)["rows"] if row["rank"] == 1)
    assert row["n"] == 36
    alike = stats.wilson(18, 36, design_effect=12 / 11 * 3)
    assert row["success"]["interval"] == pytest.approx([alike.low, alike.high])
    assert row["test"] == "exact McNemar"  # every start tells the same
    assert row["p"] == stats.mcnemar(0, 6).p > row["mcnemar"] == stats.mcnemar(0, 18).p


def test_conditions_are_arms_and_a_table_and_words_say_what_was_found(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", rollouts(10), by_rule)
    scores = score(run)
    arms = {arm["arm"]: (arm["successes"], arm["n"]) for arm in scores["arms"]}
    assert arms["p · nominal"] == (9, 10)
    assert arms["p · nominal · fresh policy noise"] == (8, 10)
    assert arms["p · actuation 4"] == (7, 10)
    assert arms["p · camera 4 + actuation 4"] == (5, 10)
    assert scores["pairs"] == []
    console = Console(width=80, file=io.StringIO())
    print_table(scores, console)
    table = console.file.getvalue().replace("\u00a0", " ")  # type: ignore[attr-defined]
    assert max(map(len, table.splitlines())) <= 80
    assert "4/10" in next(line for line in table.splitlines() if "emergent" in line)
    headline = " ".join(scores["headline"].split())
    assert (
        "p succeeds on 90 % of 10 starts as they are. The largest loss to one axis alone, −20 points under actuation "
        "at severity 4" in headline
    )
    assert "net effect of −20 points is not distinguishable from zero" in headline
    assert "while 60 % of instances change outcome" in headline
    assert "fresh policy noise flips 10 % of outcomes" in headline


def test_the_headline_claims_the_losses_that_are_shown_and_no_others(tmp_path: Path) -> None:
    def told(name: str, failing: dict[str, int]) -> str:
        def succeeds(rollout: Rollout) -> bool:
            return all(index_of(rollout) >= failing.get(axis, 0) for axis in axes_of(rollout))

        return str(score(recorded(tmp_path / name, rollouts(30, 1), succeeds))["headline"]).split(" All 2 at once")[0]

    few, one, both, none = (
        told("few", {"camera": 3}),
        told("one", {"camera": 20, "actuation": 2}),
        told("both", {"camera": 20, "actuation": 18}),
        told("none", {}),
    )
    assert "The largest loss to one axis alone, −10 points under camera" in few
    assert "is not beyond chance: p = " in few
    assert "the worst axis alone is camera" in one
    assert "By itself" not in one
    assert "the worst axis alone is camera" in both
    assert both.endswith("By itself, every axis shows a loss.")
    assert none == "p succeeds on 100 % of 30 starts as they are, and under no axis alone on fewer of them."


def test_two_policies_are_compared_across_axes(tmp_path: Path) -> None:
    runs = [
        recorded(tmp_path / "a", rollouts(10, 2), lambda rollout: True),
        recorded(tmp_path / "b", rollouts(10, 2, "q"), lambda r: "actuation" not in axes_of(r)),
    ]
    comparison = compare(*runs)
    found = {item["condition"]: item for item in comparison["comparisons"]}
    assert next(iter(found)) == "nominal"
    assert found["actuation 4"]["difference"] == 1.0
    assert found["actuation 4"]["kind"] == "paired"
    assert found["actuation 4"]["n"] == 20
    assert found["actuation 4"]["p"] == stats.mcnemar(10, 0).p  # ten starts, not twenty instances
    assert found["camera 2"]["difference"] == 0
    console = Console(width=100, file=io.StringIO())
    print_comparison(comparison, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text.count("severity") == 1
    assert "actuation" in text
    json.dumps(comparison)


def drawn(studies: int, n: int, rates: tuple[float, ...]) -> np.ndarray:
    """``[studies, 4]`` counts of both, emergent, compensated, neither."""
    return Key(1).stream("test").event("studies", n).multinomial(n, rates, studies)


@pytest.mark.parametrize(
    ("n", "b", "c", "survive"), [(60, 0.1, 0.1, 0.5), (120, 0.25, 0.05, 0.4), (400, 0.08, 0.08, 0.6)]
)
def test_intervals_of_a_known_truth_cover_it_as_often_as_they_say(n: int, b: float, c: float, survive: float) -> None:
    truth = {
        "emergent": b,
        "compensated": c,
        "change": b + c,
        "net": c - b,
        "sim": survive + c,
        "hidden": b / (1 - survive - c),
    }
    covered: dict[str, list[bool]] = {name: [] for name in truth}
    for both, emergent, compensated, neither in drawn(STUDIES, n, (survive, b, c, 1 - survive - b - c)).tolist():
        found = {
            "emergent": stats.wilson(emergent, n),
            "compensated": stats.wilson(compensated, n),
            "change": stats.wilson(emergent + compensated, n),
            "sim": stats.wilson(both + compensated, n),
            "hidden": stats.wilson(emergent, emergent + neither),
            "net": stats.paired_difference(stats.PairedCounts(both, compensated, emergent, neither)),
        }
        for name, interval in found.items():
            covered[name].append(interval.low <= truth[name] <= interval.high)
    for name, hits in covered.items():
        assert abs(np.mean(hits) - 0.95) < MONTE_CARLO + 0.01, (name, np.mean(hits))


def test_the_test_of_the_net_effect_errs_no_more_often_than_it_says() -> None:
    counts = drawn(STUDIES, 200, (0.5, 0.15, 0.15, 0.2))
    errors = np.mean([stats.mcnemar(b, c).p < 0.05 for _, b, c, _ in counts.tolist()])
    assert errors < 0.05 + MONTE_CARLO


def clustered(seed: int, starts: int, configurations: int) -> interaction.Instances:
    """Instances of starts that are alike: each start has a skill that all its runs share."""
    generator = Key(seed).stream("test").event("clustered", starts)
    skill = generator.beta(2, 1.5, starts)
    alone = generator.random((starts, configurations, 2)) < skill[:, None, None]
    together = generator.random((starts, configurations)) < skill[:, None]
    rows = starts * configurations
    numbers = np.repeat(np.arange(starts), configurations)
    singles, combined = alone.reshape(rows, 2), together.reshape(rows)
    return interaction.Instances(singles, combined, np.ones(rows, dtype=bool), numbers, numbers % 20)


@pytest.mark.slow
def test_intervals_of_clustered_instances_allow_for_their_likeness() -> None:
    a, b = 2.0, 1.5
    one, two, three = a / (a + b), a * (a + 1) / ((a + b) * (a + b + 1)), 0.0
    three = two * (a + 2) / (a + b + 2)
    truth = {"sim": one, "emergent": two - three, "change": one + two - 2 * three, "net": one - two}
    dependence = two - one * one
    hits: dict[str, list[bool]] = {name: [] for name in (*truth, "naive", "dependence", "p")}
    for seed in range(120):
        instances = clustered(seed, 60, 4)
        values = {
            "sim": instances.combined,
            "emergent": instances.conjunction & ~instances.combined,
            "change": instances.conjunction != instances.combined,
        }
        for name, successes in values.items():
            low, high = interaction.rate(successes, instances.starts, 0.95)["interval"]
            hits[name].append(low <= truth[name] <= high)
        naive = stats.wilson(int(instances.combined.sum()), len(instances.combined))
        hits["naive"].append(naive.low <= one <= naive.high)
        change = interaction.change(instances.combined, instances.conjunction, instances.starts, 0.95)
        hits["net"].append(change["interval"][0] <= truth["net"] <= change["interval"][1])
        if seed >= 60:
            continue
        swapped = interaction.change(instances.combined, instances.singles[:, 0], instances.starts, 0.95)
        hits["p"].append(swapped["p"] < 0.05)
        low, high = interaction.combination(instances)["dependence"]["interval"]
        hits["dependence"].append(low <= dependence <= high)
    error = 3 * np.sqrt(0.05 * 0.95 / 120)
    for name in truth:
        assert abs(np.mean(hits[name]) - 0.95) < error + 0.015, (name, np.mean(hits[name]))
    assert np.mean(hits["naive"]) < 0.9
    assert np.mean(hits["dependence"]) > 0.95 - 1.5 * error
    assert np.mean(hits["p"]) < 0.05 + 1.5 * error


def test_what_replication_alone_gives_is_what_independent_runs_of_a_beta_give() -> None:
    generator = Key(3).stream("test").event("replication")
    skill = generator.beta(3, 1, 200_000)
    runs = generator.random((5, len(skill))) < skill
    success, flips = runs.mean(), (runs[0] != runs[1]).mean()
    expected = (runs[:4].all(axis=0) != runs[4]).mean()
    assert interaction.change_by_replication(success, flips, 4) == pytest.approx(expected, abs=0.01)
    assert interaction.change_by_replication(0.8, 0.0, 4) == 0.0


def spent(budget: int, rates: np.ndarray, studies: int, adaptively: bool) -> tuple[np.ndarray, np.ndarray]:
    """Widths [cells] of intervals and coverage [cells] in so many simulated studies of equal budget."""
    generator = Key(9).stream("test").event("allocation", int(adaptively))
    cells, floor = len(rates), 8
    beliefs = Beliefs(studies, cells)
    first = generator.binomial(floor, rates, (studies, cells))
    beliefs.learn(first, np.full((studies, cells), floor))
    every = np.ones((studies, cells), dtype=bool)
    rows = np.arange(studies)
    batch = 4 * cells
    for _ in range((budget - floor * cells) // batch):
        added = np.zeros((studies, cells), dtype=int)
        for number in range(batch):
            chosen = beliefs.widest(every) if adaptively else np.full(studies, number % cells)
            beliefs.expect(chosen)
            added[rows, chosen] += 1
        beliefs.learn(generator.binomial(added, rates), added)
    ends = [
        [stats.wilson(int(s), int(n)) for s, n in zip(*study, strict=True)]
        for study in zip(beliefs.successes, beliefs.counts, strict=True)
    ]
    widths = np.array([[end.high - end.low for end in study] for study in ends])
    hits = np.array([[end.low <= rate <= end.high for end, rate in zip(s, rates, strict=True)] for s in ends])
    return widths.max(axis=1), hits.mean(axis=0)


def test_an_adaptive_budget_narrows_the_widest_interval_and_still_covers() -> None:
    rates = np.array([0.98, 0.97, 0.95, 0.9, 0.7, 0.5, 0.3, 0.05])
    widest, coverage = spent(800, rates, 250, adaptively=True)
    uniform, plain = spent(800, rates, 250, adaptively=False)
    assert widest.mean() < 0.9 * uniform.mean()
    error = 3 * np.sqrt(0.05 * 0.95 / 250)
    assert coverage.min() > 0.95 - error - 0.015
    assert coverage.mean() > 0.94
    assert plain.mean() > 0.94


def test_what_to_expect_of_other_perturbations_is_an_interval_over_those_drawn(tmp_path: Path) -> None:
    hard = {0, 3}
    run = recorded(
        tmp_path / "run",
        rollouts(4, configurations=6),
        lambda r: len(axes_of(r)) != 1 or r.perturbations[0].params["gain"] - r.perturbations[0].level not in hard,
    )
    row = next(row for row in study_of(run)["rows"] if row["rank"] == 1)
    assert row["configurations"] == 6
    low, high = row["over_configurations"]
    assert low < row["success"]["interval"][0] < 4 / 6 < high
    few = study_of(recorded(tmp_path / "few", rollouts(4, configurations=2), by_rule))
    assert few["rows"][0]["over_configurations"] is None
