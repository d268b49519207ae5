"""What a third party's World or policy misstates stops in one line that names it, before anything is recorded."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import simeval
from simeval.cli.app import main
from simeval.errors import ConfigError
from simeval.protocols import MonteCarlo, Setting
from simeval.rollout import run
from simeval.testing import ToyExpert, ToySimulator
from simeval.types import Rollout, Start


def evaluated(world: Any, policy: Any, path: Path | None = None) -> Any:
    return simeval.evaluate(world, policy, episodes=2, tasks=["reach-left"], horizon=5, path=path)


def toy_run(folder: Path) -> list[str]:
    (folder / "world").mkdir()
    (folder / "world" / "toy.yaml").write_text("name: toy\n_target_: simeval.testing.ToySimulator\n")
    settings = ["world=toy", "policy=uniform", "protocol.episodes=1", "report.videos=0", "run.dir=r"]
    return ["run", *settings, "--config-dir", str(folder)]


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("name", None),
        ("fingerprint", None),
        ("dynamics", None),
        ("num_slots", 0),
        ("num_slots", 2.0),
        ("success_hold", -1),
        ("success_hold", None),
        ("control_dt", 0.0),
        ("control_dt", float("nan")),
        ("tasks", "reach-left"),
        ("tasks", ()),
        ("tasks", ("reach-left", "reach-left")),
        ("observation_space", gymnasium.spaces.Box(-1, 1, (12,))),
        ("action_space", gymnasium.spaces.Discrete(3)),
        ("conventions", None),
    ],
)
def test_what_a_world_declares_is_held_against_its_contract_before_anything_is_written(
    tmp_path: Path, attribute: str, value: Any
) -> None:
    world = ToySimulator()
    setattr(world, attribute, value)
    with pytest.raises(ConfigError, match=attribute):
        evaluated(world, ToyExpert(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("attribute", "value"),
    [("observation_keys", "state"), ("observation_keys", None), ("conventions", None), ("bind", lambda spec: None)],
)
def test_what_a_policy_declares_is_held_against_its_contract_before_anything_is_written(
    tmp_path: Path, attribute: str, value: Any
) -> None:
    class Own(ToyExpert):
        pass

    setattr(Own, attribute, staticmethod(value) if callable(value) else value)
    with pytest.raises(ConfigError, match=rf"{attribute} of policy Own"):
        evaluated(ToySimulator(), Own(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_fingerprint_that_is_no_text_makes_no_run_that_cannot_be_read(tmp_path: Path) -> None:
    class Own(ToyExpert):
        fingerprint = None  # type: ignore[assignment]

    with pytest.raises(ConfigError, match="fingerprint of policy 'policy' in world 'toy' is None"):
        evaluated(ToySimulator(), Own(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("method", "change", "named"),
    [
        ("reset", lambda step: None, "it returned None"),
        ("step", lambda step: None, "it returned None"),
        ("step", lambda step: (step.observation, step.reward), "expected a TimeStep"),
        ("step", lambda step: replace(step, observation=None), "observation is None"),
        ("step", lambda step: replace(step, signals=None), "signals is None"),
        ("step", lambda step: replace(step, failures=None), "failures is None"),
        ("step", lambda step: replace(step, lost=None), "lost is None"),
        ("step", lambda step: replace(step, reward=None), "reward is None"),
        ("snapshot", lambda taken: None, "snapshot gave None"),
        ("snapshot", lambda taken: taken[:-1], "snapshot gave 1 of Snapshot for 2 slots"),
        ("snapshot", lambda taken: [item.state for item in taken], "snapshot gave 2 of dict"),
    ],
)
def test_what_a_world_returns_in_another_form_is_named(
    monkeypatch: pytest.MonkeyPatch, method: str, change: Callable[[Any], Any], named: str
) -> None:
    world = ToySimulator(num_slots=2)
    original = getattr(world, method)
    monkeypatch.setattr(world, method, lambda *arguments: change(original(*arguments)))
    study = MonteCarlo(episodes=2, tasks=["reach-left"], horizon=5, snapshot_every=2)
    with pytest.raises(ConfigError, match=named):
        run(study.protocol(Setting({"world": world}, {"world": ["policy"]}, 0)), world, ToyExpert())


@pytest.mark.parametrize(
    ("method", "given", "named"),
    [
        ("horizon", 1.5, "horizon of task 'reach-left' in world 'toy' is a whole number of at least 1; received 1.5"),
        ("horizon", 0, "horizon of task 'reach-left' in world 'toy'"),
        ("starts", [], "for [0-9]+ starts of task 'reach-left' it gives"),
        ("starts", [None, None], "for [0-9]+ starts of task 'reach-left' it gives"),
        ("starts", [Start("push-left"), Start("push-left")], "for [0-9]+ starts of task 'reach-left' it gives"),
    ],
)
def test_starts_and_horizons_that_are_none_are_named(
    monkeypatch: pytest.MonkeyPatch, method: str, given: Any, named: str
) -> None:
    world = ToySimulator()
    monkeypatch.setattr(world, method, lambda *arguments: given)
    with pytest.raises(ConfigError, match=named):
        simeval.evaluate(world, ToyExpert(), episodes=2, tasks=["reach-left"])


def test_a_rollout_is_of_whole_numbers_whichever_library_they_are_of() -> None:
    start = Start("reach-left", "go", seed=3)
    with pytest.raises(TypeError, match="horizon of a rollout is a whole number"):
        Rollout(start, 1, 1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="instruction of a start is text; received None"):
        replace(start, instruction=None)  # type: ignore[arg-type]
    of_numpy = Rollout(replace(start, seed=np.int64(3)), np.int64(1), np.int64(9))  # type: ignore[arg-type]
    assert of_numpy.id == Rollout(start, 1, 9).id


def test_a_memory_or_answer_in_another_form_is_said_to_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(ToyExpert):
        answer: Any = None
        memory: Any = None

        def initial_memory(self, n: int) -> Any:
            return self.memory

        def act(self, *arguments: Any) -> Any:
            return self.answer

    monkeypatch.setattr(Own, "memory", {})
    with pytest.raises(ConfigError, match="policy 'policy' gave None, expected a PolicyStep"):
        evaluated(ToySimulator(), Own())
    for memory, named in (
        (None, "initial_memory is None; expected a mapping"),
        ({"a": [0] * 4}, "'a' is .*expected an array"),
    ):
        monkeypatch.setattr(Own, "memory", memory)
        for episode in evaluated(ToySimulator(), Own()):
            assert re.search(named, episode.ending.error)


def test_an_error_outside_an_episode_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def broken(*arguments: Any) -> Any:
        raise RuntimeError("no such start")

    monkeypatch.setattr(ToySimulator, "start", broken)
    assert main(toy_run(tmp_path)) == 2
    told = capsys.readouterr().err.strip()
    assert len(told.splitlines()) == 1
    assert "RuntimeError: no such start" in told
    assert "Traceback" not in told


def test_a_world_that_cannot_close_loses_no_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def broken(world: Any) -> None:
        raise RuntimeError("stuck")

    monkeypatch.setattr(ToySimulator, "close", broken)
    assert main(toy_run(tmp_path)) == 0
    assert "failed to close: RuntimeError: stuck" in capsys.readouterr().err
    assert (tmp_path / "r" / "report.html").exists()


def test_a_task_that_is_named_twice_is_not_counted_twice() -> None:
    with pytest.raises(ConfigError, match="names a task twice"):
        simeval.evaluate(ToySimulator(), ToyExpert(), episodes=2, tasks=["reach-left", "reach-left"])
