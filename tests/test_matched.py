"""Matched perturbations: one start and one noise under every condition, and what the traces say of it."""

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simeval.axes import Axis, PerturbationAxis
from simeval.cli import main
from simeval.cli.build import perturbation_axes
from simeval.episode import Episode
from simeval.errors import ConfigError, UnsupportedError
from simeval.matched import REPLICATED, Condition, Matched
from simeval.noise import StepKey
from simeval.protocols import Setting
from simeval.rollout import run
from simeval.schedule import Drop
from simeval.score import score
from simeval.testing.runs import made_episode, write_made_run
from simeval.testing.toy_policies import ToyExpert, toy_policies
from simeval.testing.toys import ToySimulator
from simeval.types import Perturbation, Rollout, Start, TimeStep

TASKS = ("reach-left", "reach-right")


@dataclass(frozen=True)
class Level(PerturbationAxis):
    """An axis of the toy worlds, which act by level alone."""

    name: str
    severities: tuple[float, ...] = (1.5, 3.0)

    def draw(self, level: float, rng: np.random.Generator) -> Perturbation:
        return Perturbation(self.name, level)


MASS, PUCK = Level("dynamics.puck_mass"), Level("initial_state.puck", (0.1, 0.2))
GAIN = Axis("actuation", {"gain": 0.2, "bias": 0.05}, one_sided=("bias",))
NOISE = Axis("sensor", {"state": 0.01}, one_sided=("state",))


def study(**settings: Any) -> Matched:
    return Matched(**{"episodes": 3, "horizon": 40, "tasks": TASKS, "axes": {"mass": MASS, "puck": PUCK}, **settings})


def setting(world: ToySimulator, *policies: str) -> Setting:
    return Setting({"world": world}, {"world": policies or ("gaussian",)}, seed=5)


def played(design: Matched, world: ToySimulator, *policies: str) -> list[Episode]:
    where = setting(world, *policies)
    episodes = run(design.protocol(where), world, {name: toy_policies()[name] for name in where.policies["world"]})
    assert len({episode.id for episode in episodes}) == len(episodes) == design.size(where)
    assert not [episode.error for episode in episodes if episode.status == "error"]
    return episodes


def cells(episodes: Sequence[Episode]) -> dict[Any, dict[tuple[Perturbation, ...], Episode]]:
    found: dict[Any, dict[tuple[Perturbation, ...], Episode]] = defaultdict(dict)
    for episode in episodes:
        rollout = episode.rollout
        found[rollout.start, rollout.seed, rollout.policy, rollout.streams][rollout.perturbations] = episode
    return found


def test_every_start_is_run_under_every_condition_with_the_very_perturbations_that_are_run_alone() -> None:
    design = study(pairs=True, axes={"gain": GAIN, "noise": NOISE, "mass": Level("dynamics.puck_mass", (2, 4, 8))})
    episodes = played(design, ToySimulator(32), "gaussian", "expert")
    shared = {key: found for key, found in cells(episodes).items() if not key[-1]}
    assert len(shared) == 3 * 2 * 2
    for found in shared.values():
        assert Counter(map(len, found)) == {0: 1, 1: 9, 2: 9, 3: 3}
        alone = {condition[0] for condition in found if len(condition) == 1}
        assert all(set(condition) <= alone for condition in found)
    starts = [key[:2] for key in shared]
    assert set(Counter(starts).values()) == {2}  # both policies on the same starts and noise


def test_a_configuration_is_the_same_for_all_starts_and_severities_are_whitened_norms() -> None:
    design = study(axes={"gain": GAIN}, configurations=3, replications=0, severities=[2, 8])
    perturbations = {p for found in cells(played(design, ToySimulator(32))).values() for c in found for p in c}
    assert Counter(p.level for p in perturbations) == {2: 3, 8: 3}
    assert all(GAIN.severity(p.params) == pytest.approx(p.level) for p in perturbations)


def test_a_deterministic_policys_replication_flips_nothing_and_a_stochastic_ones_differs() -> None:
    def replicas(policy: str) -> tuple[list[bool], int]:
        found = cells(played(study(axes={"mass": MASS}, episodes=4), ToySimulator(32, gust=0.0), policy))
        nominal = {key[:2]: c[()] for key, c in found.items() if not key[-1]}
        again = [(key, c[()]) for key, c in found.items() if key[-1]]
        assert Counter(key[-1][0][0] for key, _ in again) == dict.fromkeys(REPLICATED, 8)
        same = [np.array_equal(nominal[key[:2]].action, e.action) for key, e in again if key[-1][0][0] == "policy"]
        return same, sum(nominal[key[:2]].succeeded != e.succeeded for key, e in again)

    same, flips = replicas("expert")
    assert all(same)
    assert flips == 0
    assert not any(replicas("gaussian")[0])


def test_a_perturbation_that_changes_nothing_changes_no_bit() -> None:
    nothing = Axis("actuation", {"gain": 1.0})
    design = study(axes={"none": nothing}, severities=[1e-300], replications=0, episodes=1)
    for found in cells(played(design, ToySimulator(4))).values():
        plain, perturbed = found.values()
        assert np.array_equal(plain.action, perturbed.action)
        assert np.array_equal(plain.observation["state"], perturbed.observation["state"])


def test_in_a_combination_each_axis_has_the_noise_that_it_has_alone() -> None:
    class Constant(ToyExpert):
        def act(self, observation: Any, instruction: Sequence[str], memory: Any, keys: Sequence[StepKey]) -> Any:
            return super().act({"state": 0 * observation["state"]}, instruction, memory, keys)

    world = ToySimulator(4)
    noisy = Axis("actuation", {"noise": 0.02}, one_sided=("noise",))
    design = study(axes={"state": NOISE, "noise": noisy}, severities=[4], episodes=1, replications=0, horizon=10)
    episodes = run(design.protocol(setting(world, "constant")), world, {"constant": Constant()})
    for found in cells(episodes).values():
        alone = next(e for c, e in found.items() if [p.axis for p in c] == ["actuation"])
        together = next(e for c, e in found.items() if len(c) == 2)
        assert np.array_equal(alone.action, together.action)


class Particular(ToySimulator):
    """Objects to half of the spots that are drawn, or to all."""

    perturbation_axes = frozenset({"initial_state.spot", *ToySimulator.perturbation_axes})
    always = False

    def objection(self, start: Start) -> str | None:
        spots = [p.params["spot"] for p in start.perturbations if p.axis == "initial_state.spot"]
        return "it lies in the gap" if self.always or any(spot > 0 for spot in spots) else None

    def reset(self, slots: Sequence[int], starts: Sequence[Start], keys: Sequence[StepKey]) -> TimeStep:
        for start in starts:
            assert self.objection(start) is None
        plain = [replace(s, perturbations=tuple(p for p in s.perturbations if "spot" not in p.axis)) for s in starts]
        return super().reset(slots, plain, keys)


SPOT = Axis("initial_state.spot", {"spot": 1.0, "depth": 1.0}, severities=(2.0,))


def test_what_the_world_objects_to_is_drawn_again_and_counted() -> None:
    design = study(axes={"spot": SPOT, "mass": Level("dynamics.puck_mass", (2.0,))}, configurations=8, episodes=1)
    episodes = played(design, Particular(32))
    alone = [p for e in episodes for p in e.rollout.perturbations if len(e.rollout.perturbations) == 1]
    redraws = [p.params.get("redraws", 0) for p in alone if p.axis == "initial_state.spot"]
    assert len(redraws) == 16
    assert all(p.params["spot"] <= 0 for p in alone if p.axis == "initial_state.spot")
    assert 0 < sum(redraws) < 16 * 20
    assert {"redraws"} & {key for p in alone for key in p.params} == {"redraws"}
    assert all(p.params.get("redraws", 1) for p in alone)  # left out when 0


def test_what_the_world_always_objects_to_is_dropped_with_the_reason_and_the_rest_is_run(tmp_path: Path) -> None:
    world = Particular(32)
    world.always = True
    design = study(axes={"spot": SPOT, "mass": Level("dynamics.puck_mass", (2.0,))}, episodes=1, tasks=TASKS[:1])
    (asked,) = design.rounds(setting(world))
    dropped = [one for one in asked if isinstance(one, Drop)]
    assert [[p.axis for p in one.rollout.perturbations] for one in dropped] == [
        ["initial_state.spot"],
        ["initial_state.spot", "dynamics.puck_mass"],
    ]
    assert "21 draws of spot: it lies in the gap" in dropped[0].reason
    world.always = False
    kept = [one for one in asked if isinstance(one, Rollout)]
    assert len(kept) == 4
    recorded = write_made_run(
        tmp_path / "run", [made_episode(r, True) for r in kept], dropped={d.rollout: d.reason for d in dropped}
    )
    scores = score(recorded)
    assert scores["requested"]["dropped"] == 2
    assert scores["matched"][0]["dropped"] == 2


def test_axes_that_a_world_cannot_apply_are_named_before_anything_runs() -> None:
    axes = {"gain": GAIN, "view": Level("camera", (2, 4, 8)), "lighting": Level("lighting", (2, 4, 8))}
    with pytest.raises(
        UnsupportedError, match=r"'toy' cannot apply view \(camera\), lighting; .* protocol.only=\[gain\]"
    ):
        study(axes=axes).size(setting(ToySimulator()))
    assert study(axes=axes, only=["gain"]).conditions == [("gain",)]
    axes["dust"] = Axis("sensor", {"proprio": 0.01}, one_sided=("proprio",))
    with pytest.raises(UnsupportedError, match=r"apply view .*, dust .*; .*=\[gain\]; .* noise on proprio, which"):
        study(axes=axes).size(setting(ToySimulator()))  # all at once


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"axes": None}, "perturbation=libero-ctrl"),
        ({"only": ["mas"]}, "unknown axis of this study 'mas'; did you mean mass"),
        ({"only": []}, r"protocol.only=\[\]: a study needs an axis, of mass, puck"),
        ({"axes": {"a": MASS, "b": Level("b", (1.0,))}}, r"severities of different numbers .*protocol.severities"),
        ({"severities": []}, "severities"),
        ({"configurations": 0}, "protocol.configurations=0"),
        ({"combined": 1}, "protocol.combined is true or false; received 1"),
        ({"allocation": {"floor": 3}}, "allocation.budget must be given"),
        ({"allocation": {"budgets": 3}}, "unknown setting of protocol.allocation 'budgets'; did you mean budget"),
    ],
)
def test_designs_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        study(**settings)


def test_an_adaptive_study_spends_its_budget_where_the_intervals_are_widest_and_can_be_resumed() -> None:
    axes = {"mass": Level("dynamics.puck_mass", (1.0,)), "noise": replace(NOISE, severities=(60.0,))}
    design = study(axes=axes, episodes=30, tasks=TASKS[:1], allocation={"budget": 60, "floor": 4, "batch": 12})
    world = ToySimulator(32)
    episodes = played(design, world, "expert")
    counts: Counter[Condition] = Counter(tuple(p.axis for p in e.rollout.perturbations) for e in episodes)
    assert sum(counts.values()) == 60
    assert min(counts.values()) >= 4
    rates = {
        c: np.mean([e.succeeded for e in episodes if [p.axis for p in e.rollout.perturbations] == [c]])
        for c in ("dynamics.puck_mass", "sensor")
    }
    surer, other = sorted(rates, key=lambda c: abs(rates[c] - 0.5), reverse=True)
    assert counts[other,] >= counts[surer,]
    assert [e.id for e in played(design, ToySimulator(3), "expert")] == [e.id for e in episodes]


def test_the_command_line_takes_axes_and_presets_and_names_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    common = ["run", "protocol=matched", "world.task=reach", "world.num_slots=8", "report.videos=0", "run.dir=r"]

    def refused(*settings: str) -> str:
        assert main([*common, *settings]) == 2
        assert not Path("r").exists()
        (line,) = capsys.readouterr().err.splitlines()
        return line

    assert "choose them by perturbation=libero-ctrl" in refused()
    assert "unknown perturbation 'camra'; did you mean camera" in refused("perturbation=camra")
    assert "'camera' is in two of" in refused("perturbation=libero-ctrl,camera")
    assert "unknown axis of this study 'robots'" in refused("perturbation=libero-ctrl", "protocol.only=[robots]")
    small = ["protocol.episodes=1", "protocol.configurations=1", "protocol.severities=[2]", "protocol.horizon=20"]
    assert main([*common, "perturbation=actuation,robot", "perturbation.actuation.scales.lag=null", *small]) == 0
    assert "all 2 at once" in capsys.readouterr().out
    (study,) = json.loads(Path("r/scores.json").read_text())["matched"]
    assert study["axes"] == ["actuation", "initial_state.robot"]
    assert main(["run", "run.dir=r", "run.resume=true", "perturbation=actuation,robot", "protocol.episodes=2"]) == 0
    (study,) = json.loads(Path("r/scores.json").read_text())["matched"]
    assert study["starts"] == 2
    capsys.readouterr()
    assert main(["run", "run.dir=r", "run.resume=true", "perturbation=camera"]) == 2
    assert "keeps its perturbation, which is actuation, robot" in capsys.readouterr().err


def test_a_configured_axis_builds_axes_and_nothing_else() -> None:
    with pytest.raises(ConfigError, match="no PerturbationAxis"):
        perturbation_axes({"camera": {"_target_": "subprocess.Popen"}})
