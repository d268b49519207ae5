"""A classifier learned from traces judges episodes that it has not seen, and says where it cannot."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from judges.classifier import Classifier
from judges.network import SuccessClassifier
from judges.sight import Shown, Sight, Trials
from judges.trainer import ClassifierTrainer, step_logits
from learning.words import Vocabulary
from simeval.cli import main
from simeval.episode import Episode
from simeval.errors import ConfigError
from simeval.judge_analysis import ITSELF, audits
from simeval.outcomes import read_outcomes
from simeval.reader import Run
from simeval.testing import ToySimulator
from simeval.testing.runs import made_episode, made_rollout, write_made_run
from simeval.verdicts import judge_run

torch.set_num_threads(1)  # tests run side by side
SETTINGS = {"width": 32, "channels": [8, 8, 8], "dropout": 0.1}
RECIPE = {"steps": 300, "batch_size": 64, "warmup": 20, "ema": 0.98, "validate_every": 300, "save_every": 300}
SPEC = ToySimulator(1).spec
"""Of some World: the training reads nothing of it."""


def recorded(path: Path, seed: int, *settings: str) -> Run:
    policy = ["policy=noisy_expert", "policy.sigma=0.9", "world.task=[press_button,open_drawer]"]
    assert main(["run", *policy, *settings, f"seed={seed}", "report.videos=0", f"run.dir={path}"]) == 0
    return Run(path)


def trainer(observation: str = "state", **settings: object) -> ClassifierTrainer:
    recipe = {**RECIPE, **settings.pop("recipe", {})}  # type: ignore[dict-item]
    return ClassifierTrainer(
        SETTINGS, observation, 2, 1, recipe, **{"validation": 0.3, "device": "cpu", "threads": 1, **settings}
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    settings = ["protocol.episodes=50", "protocol.stop_on_success=false", "protocol.horizon=60"]
    return recorded(tmp_path_factory.mktemp("recorded") / "run", 0, *settings)


@pytest.fixture(scope="module")
def trained(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "classifier"
    trainer().train([run], folder, SPEC, lambda step, values: None)
    return folder


def test_episodes_that_it_has_not_seen_are_judged_better_than_by_the_base_rate(trained: Path, tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", 1, "protocol.episodes=20", "protocol.horizon=60")
    verdicts = judge_run(run, Classifier(str(trained)), "classifier", ["tabletop"], {})
    (found,) = audits(read_outcomes(run), verdicts, ["tabletop"])
    assert found["against"] == ITSELF
    assert found["n"] == 2 * 20
    assert 0.2 < found["rate"]["true"] < 0.8
    assert found["accuracy"]["estimate"] > 0.85
    assert found["calibration"]["brier"]["estimate"] < 0.5 * found["calibration"]["brier_of_base_rate"]


def test_the_same_episode_gets_the_same_verdict(run: Run, trained: Path) -> None:
    episode = next(iter(run))
    assert Classifier(str(trained))(episode) == Classifier(str(trained))(episode)
    assert Classifier(str(trained)).fingerprint == Classifier(str(trained)).fingerprint


def test_it_learns_from_images(tmp_path: Path) -> None:
    cameras = ["world.cameras=[front]", "world.image_size=32", "world.task=open_drawer"]
    run = recorded(tmp_path / "run", 0, *cameras, "protocol.episodes=24", "protocol.stop_on_success=false")
    told: list[dict[str, float]] = []
    trainer("image_front", validation=0.5, recipe={"steps": 100}).train(
        [run], tmp_path / "trained", SPEC, lambda step, values: told.append(dict(values))
    )
    losses = [values["loss"] for values in told if "loss" in values]
    assert losses[-1] < 0.9 * losses[0]
    assert Classifier(str(tmp_path / "trained"))(next(iter(run))).success is not None


def test_what_it_did_not_learn_to_look_at_is_refused_and_tasks_it_did_not_learn_get_no_verdict(
    run: Run, trained: Path
) -> None:
    judge = Classifier(str(trained))
    other = made_episode(made_rollout("p", "press_button", 0), True)
    with pytest.raises(ConfigError, match=r"observation 'state' is \(8,\), not \(231,\)"):
        judge(other)
    known = next(iter(run))
    start = replace(known.rollout.start, task="stow")
    verdict = judge(Episode(replace(known.rollout, start=start), known.ending, known.source))
    assert verdict.success is None
    assert "'stow' was not learned" in verdict.reason


def network(success_hold: int = 3) -> SuccessClassifier:
    sight = Sight({}, {"state": 2}, 1, 1, ("t",), success_hold)
    return SuccessClassifier(sight, Vocabulary(["go"], 4), **SETTINGS)


@pytest.mark.parametrize(
    ("after_each_step", "expected"),
    [
        ([-5, 4, 3, 2, -5], 2.0),  # it held, with this much conviction
        ([-5, 9, -5, 9, -5, 9], -5.0),  # touched three times, never held
        ([1, 2], 1.0),  # an episode shorter than it must hold
        ([3, 3, 3, -9, -9, -9], 3.0),  # held, and undone afterwards
    ],
)
def test_an_episode_succeeds_as_its_goal_holds(after_each_step: list[float], expected: float) -> None:
    assert float(network().episode(torch.tensor(after_each_step, dtype=torch.float32))) == expected


def test_logits_are_scaled_and_shifted_to_what_comes_true() -> None:
    draws = np.random.default_rng(0)
    logits = torch.from_numpy(draws.normal(0, 4, 4000))
    succeeded = torch.from_numpy(draws.random(4000) < 1 / (1 + np.exp(-(0.5 * logits.numpy() - 1))))
    judge = network()
    judge.calibrate(logits, succeeded)
    assert judge.scaling.tolist() == pytest.approx([0.5, -1], abs=0.1)
    apart = torch.tensor([-3.0, -2.0, 2.0, 3.0])
    judge.calibrate(apart, apart > 0)  # nothing tells how sharp it may be
    assert 0.02 < float(judge.calibrated(apart)[0]) < 0.4


def test_a_moment_is_what_was_last_seen_and_never_what_comes(run: Run) -> None:
    trials = Trials([run], ["state"], 3, 2, validation=0.3, seed=0, memory=1 << 30)
    episode = trials.training[0]
    shown = Shown.of(episode, trials.sight, trials.vocabulary)
    moment = shown.after(torch.tensor([0, 7]), trials.sight)
    state = torch.from_numpy(np.array(episode.observation["state"], np.float32))
    assert torch.equal(moment.numbers[0], state[[0, 0, 1]])
    assert torch.equal(moment.numbers[1], state[[4, 6, 8]])
    assert moment.goal.tolist() == episode.success[[0, 7]].tolist()
    (batch,) = (trials.batch([shown], [(0, 0), (0, 7)]),)
    assert torch.equal(batch.numbers, moment.numbers)
    assert torch.equal(batch.tokens, moment.tokens)


def test_logits_do_not_depend_on_what_is_computed_together(run: Run, trained: Path) -> None:
    judge = Classifier(str(trained))
    shown = Shown.of(next(iter(run)), judge._network.sight, judge._network.vocabulary)
    with torch.no_grad():
        whole = step_logits(judge._network, shown, torch.device("cpu"))
        alone = judge._network(shown.after(torch.tensor([5]), judge._network.sight))
    assert float(alone[0]) == pytest.approx(float(whole[5]), abs=1e-5)


def test_starts_are_trained_on_or_held_out_by_all_policies_alike(run: Run) -> None:
    trials = Trials([run], ["state"], 1, 1, validation=0.3, seed=0, memory=1 << 30)
    sides = [{episode.rollout.start for episode in part} for part in (trials.training, trials.validation)]
    assert not sides[0] & sides[1]


def test_it_does_not_learn_from_successes_alone(tmp_path: Path) -> None:
    run = write_made_run(tmp_path / "run", [made_episode(made_rollout("p", "reach", i), True) for i in range(9)])
    with pytest.raises(ConfigError, match="a judge learns from successes and failures"):
        trainer().train([run], tmp_path / "trained", SPEC, lambda step, values: None)
    assert not (tmp_path / "trained").exists()


def test_a_training_gone_on_with_is_the_training_that_never_stopped(run: Run, tmp_path: Path) -> None:
    recipe = {"steps": 8, "save_every": 4, "validate_every": 8}

    def stopped(step: int, values: dict[str, float]) -> None:
        if "validation_brier" in values:
            raise KeyboardInterrupt

    for name in ("whole", "stopped"):
        folder = tmp_path / name
        if name == "stopped":
            with pytest.raises(KeyboardInterrupt):
                trainer(recipe=recipe).train([run], folder, SPEC, stopped)
        trainer(recipe=recipe).train([run], folder, SPEC, lambda *_: None, resume=name == "stopped")
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "stopped")]
    assert weights[0] == weights[1]


def test_a_damaged_checkpoint_is_refused(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((trained / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"\x80\x04pickle")
    with pytest.raises(ConfigError, match="cannot be read"):
        Classifier(str(tmp_path))
    with pytest.raises(ConfigError, match="is no checkpoint"):
        Classifier(str(tmp_path / "nowhere"))


def test_the_command_line_trains_one_and_judges_by_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["world.task=[press_button]", "protocol.episodes=12", "report.videos=0", "protocol.horizon=60"]
    data = tmp_path / "data"
    assert main(["run", "policy=expert,uniform", *settings, f"run.dir={data}"]) == 0
    small = ["classifier.settings.width=16", "classifier.recipe.steps=40", "classifier.threads=1"]
    into = f"dir={tmp_path / 'trained'}"
    assert main(["train", "classifier=success", f"data={data}", into, "classifier.validation=0.4", *small]) == 0
    told = [json.loads(line) for line in (tmp_path / "trained" / "metrics.jsonl").read_text().splitlines()]
    assert {"loss", "validation_accuracy", "validation_brier"} <= {name for line in told for name in line}
    capsys.readouterr()
    checkpoint = f"judge.checkpoint={tmp_path / 'trained'}"
    assert main(["judge", str(data), "judge=classifier", checkpoint]) == 0
    assert "Calibration" in capsys.readouterr().out
    assert main(["judge", str(data), "judge=classifier"]) == 2
    assert "judge.checkpoint must be given" in capsys.readouterr().err
    assert main(["train", "classifier=success", "worldmodel=ensemble", f"data={data}"]) == 2
    assert "worldmodel=… and classifier=… are 2 trainings" in capsys.readouterr().err
