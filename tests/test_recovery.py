"""Faults in the middle of an episode: when they come, what they do, and how often a policy recovers."""

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from rich.console import Console

from simeval import Policy, PolicyStep, Simulator, SimulatorStep, SimulatorWorld, Start, StepKey
from simeval.conventions import Conventions
from simeval.episode import Episode
from simeval.errors import ConfigError, UnsupportedError
from simeval.perturbation import effect_of
from simeval.protocols import Setting
from simeval.recovery import INJECTIONS, Recovery
from simeval.rollout import run
from simeval.score import score
from simeval.store import MemoryStore
from simeval.tables import print_table
from simeval.testing.runs import write_made_run
from simeval.testing.toys import ToySimulator
from simeval.types import Perturbation, WorldSpec

SPACE = gymnasium.spaces.Box(np.array([-1, -1, -1, 0], dtype=np.float32), np.array([1, 1, 1, 1], dtype=np.float32))
DECLARED = Conventions(action=("dx", "dy", "dyaw", "gripper"), gripper="zero_closes")


class Carrying(Simulator):
    """A hand on a line that carries a thing from 0 to 1, if its gripper (0 closes) holds it."""

    def reset(self, start: Start, key: StepKey) -> SimulatorStep:
        self.state = np.array([-0.5 - 0.1 * (start.seed or 0) % 0.3, 0.0, 0.0])  # hand, thing, whether it is held
        return self._step()

    def step(self, action: np.ndarray, key: StepKey) -> SimulatorStep:
        hand, thing, _ = self.state
        holds = action[3] < 0.5 and abs(hand - thing) < 0.06
        hand += 0.05 * float(action[0])
        self.state = np.array([hand, hand if holds else thing, float(holds)])
        return self._step()

    def snapshot(self) -> Mapping[str, Any]:
        return {"state": self.state.copy()}

    def restore(self, state: Mapping[str, Any]) -> SimulatorStep:
        self.state = np.array(state["state"])
        return self._step()

    def _step(self) -> SimulatorStep:
        return SimulatorStep({"state": self.state.copy()}, reward=0.0, success=bool(self.state[1] > 1.0))


class CarryWorld(SimulatorWorld):
    def __init__(self, num_slots: int = 4):
        space = gymnasium.spaces.Dict({"state": gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float64)})
        super().__init__(
            name="carry",
            num_slots=num_slots,
            tasks=("carry", "look"),
            build=lambda task: Carrying(),
            observation_space=space,
            action_space=SPACE,
            control_dt=0.1,
            fingerprint="carry/1",
            signals={},
        )
        self.conventions = DECLARED

    def start(self, task: str, seed: int) -> Start:
        return Start(task, task, seed=seed)

    def horizon(self, task: str) -> int:
        return 60


class Carrier(Policy):
    """Carries; where it may ``retry``, it goes back for what it lost."""

    observation_keys = ("state",)

    def __init__(self, retry: bool = True):
        self.retry = retry

    def act(self, observation: Any, instruction: Sequence[str], memory: Any, keys: Sequence[StepKey]) -> PolicyStep:
        hand, thing, held = observation["state"].T
        far = np.abs(hand - thing) > 0.03
        back = np.where(self.retry | (hand < 0.03), np.clip((thing - hand) / 0.05, -1, 1), 1.0)
        forward = np.where(far & (held < 0.5), back, 1.0)
        looks = np.array([text == "look" for text in instruction])
        action = np.zeros((len(keys), 4), dtype=np.float32)
        action[:, 0] = np.where(looks, 0.1, forward)
        action[:, 3] = np.where(looks, 1.0, far & (held < 0.5))
        return PolicyStep(action, memory)


def played(policy: Policy, **settings: Any) -> list[Episode]:
    study = Recovery(**{"episodes": 3, "tasks": ["carry"], **settings})
    world = CarryWorld()
    setting = Setting({"world": world}, {"world": ["p"]}, seed=1)
    return run(study.protocol(setting), world, {"p": policy})


def faults(episodes: Sequence[Episode]) -> list[tuple[Perturbation, Episode, Episode]]:
    by_id = {episode.id: episode for episode in episodes}
    return [
        (episode.rollout.perturbations[0], episode, by_id[episode.rollout.parent])
        for episode in episodes
        if episode.rollout.parent is not None
    ]


def test_faults_come_where_they_make_sense_and_share_the_past() -> None:
    found = faults(played(Carrier(), draws=2))
    assert Counter(p.axis for p, _, _ in found) == {f"injection.{name}": 6 for name in INJECTIONS}
    for fault, episode, twin in found:
        closed = twin.action[:, 3] < 0.5
        begins, ends = fault.from_step, fault.to_step
        assert episode.rollout.branch_step == begins < twin.length
        assert ends is not None
        during = episode.action[: ends - begins]
        if fault.axis == "injection.premature_close":
            assert not closed[: begins + 1].any()
            assert (during[:, 3] == 0).all()
            assert ends - begins == 5
        elif fault.axis in ("injection.grasp_slip", "injection.hold_open"):
            assert closed[begins - 2 : begins + 1].all()
            assert (during[:, 3] == 1).all()
            assert ends - begins == (2 if "slip" in fault.axis else 10)
        else:
            moved = [name in fault.params for name in ("dx", "dy", "dyaw")]
            assert moved == ([True, True, False] if "position" in fault.axis else [False, False, True])


def test_times_are_drawn_from_equal_parts_and_depend_on_the_rollout_alone() -> None:
    episodes = played(Carrier(), draws=4, injections=["position_offset"])
    for twin in (episode for episode in episodes if episode.rollout.parent is None):
        steps = sorted(p.from_step for p, _, parent in faults(episodes) if parent is twin)
        parts = np.array_split(np.arange(twin.length), 4)
        assert all(step in part for step, part in zip(steps, parts, strict=True))
    again = played(Carrier(), draws=4, injections=["position_offset"])
    assert [episode.id for episode in again] == [episode.id for episode in episodes]


def test_a_policy_that_goes_back_recovers_and_one_that_does_not_is_told_apart(tmp_path: Path) -> None:
    injections = ["grasp_slip", "hold_open", "premature_close"]
    rates = {}
    for name, policy in (("returns", Carrier()), ("goes on", Carrier(retry=False))):
        episodes = played(policy, injections=injections, episodes=4)
        scores = score(write_made_run(tmp_path / name, episodes))
        (study,) = scores["recovery"]
        assert study["twins"]["rate"] == 1.0
        rates[name] = {row["fault"]: row["recovered"]["rate"] for row in study["faults"]}
        counts = [study["all"]["by_phase"][phase]["recovered"]["n"] for phase in study["phases"]]
        assert sum(counts) == study["all"]["recovered"]["n"] == 36
        console = Console(width=80, file=io.StringIO())
        print_table(scores, console)
        assert "hold_open" in console.file.getvalue()  # type: ignore[attr-defined]
        assert scores["headline"].startswith("p recovers from")
        assert len(scores["branches"]) == 3
    assert rates["returns"] == dict.fromkeys(injections, 1.0)
    assert rates["goes on"]["hold_open"] == 0.0
    assert rates["goes on"]["premature_close"] == 1.0


def test_a_fault_that_makes_no_sense_is_dropped_with_the_reason() -> None:
    study = Recovery(1, tasks=["look"], injections=["grasp_slip", "premature_close"])
    world = CarryWorld()
    dropped: list[str] = []

    class Noting(MemoryStore):
        def drop(self, rollout: Any, reason: str) -> None:
            dropped.append(reason)

    setting = Setting({"world": world}, {"world": ["p"]}, seed=1)
    episodes = run(study.protocol(setting), world, {"p": Carrier()}, Noting())
    assert len(episodes) == 1
    assert {text.split(" is ")[0] for text in dropped} == {"the gripper"}
    assert any("never told to close and hold" in text for text in dropped)


def test_worlds_that_do_not_declare_their_actions_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match=r"'toy' does not declare .* premature_close, grasp_slip, hold_open"):
        Recovery(1).size(Setting({"toy": ToySimulator()}, {"toy": ["p"]}, seed=0))
    with pytest.raises(ConfigError, match="unknown injection 'grasp_slp'; did you mean grasp_slip"):
        Recovery(1, injections=["grasp_slp"])
    with pytest.raises(ConfigError, match=r"protocol.amount=0"):
        Recovery(1, amount=0.0)


@pytest.mark.parametrize(("gripper", "closed"), [("zero_closes", 0.0), ("one_closes", 1.0), ("plus_closes", 1.0)])
def test_which_way_a_gripper_closes_is_what_the_world_declares(gripper: str, closed: float) -> None:
    space = gymnasium.spaces.Dict({})
    conventions = replace(DECLARED, gripper=gripper)
    spec = WorldSpec("w", space, SPACE, 0.1, ("t",), conventions)
    action = np.full(4, 0.25, dtype=np.float32)
    key: Any = None
    shut, _ = effect_of(Perturbation("injection.premature_close"), spec).action(action, {}, key)
    opened, _ = effect_of(Perturbation("injection.grasp_slip"), spec).action(action, {}, key)
    assert shut.tolist() == [0.25, 0.25, 0.25, closed]
    assert opened.tolist() == [0.25, 0.25, 0.25, 1 - closed]
    offset, _ = effect_of(Perturbation("injection.position_offset", params={"dx": 0.9}), spec).action(action, {}, key)
    assert offset.tolist() == [1.0, 0.25, 0.25, 0.25]
