"""``simeval train``: from a recorded run to a checkpoint that ``policy=vla`` runs."""

import json
from pathlib import Path

import pytest

from simeval.cli import main
from simeval.reader import Run

SMALL = (
    "policy.settings.dim=32",
    "policy.settings.heads=2",
    "policy.settings.depth=1",
    "policy.settings.context_depth=1",
    "policy.settings.width=8",
    "policy.recipe.batch_size=8",
    "policy.recipe.save_every=2",
    "policy.recipe.validate_every=2",
    "policy.validation=0.3",
    "policy.device=cpu",
    "policy.threads=1",
)
CAMERAS = ("world.cameras=[front,wrist]", "world.image_size=32")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("train") / "demonstrations"
    settings = ["world.task=reach", *CAMERAS, "protocol.episodes=10", "report.videos=0", f"run.dir={path}"]
    assert main(["run", "policy=noisy_expert", "policy.sigma=0.1", *settings]) == 0
    return path


def test_a_policy_is_trained_gone_on_with_and_evaluated(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "trained"
    common = ["train", "policy=vla", f"data={data}", f"dir={folder}", *SMALL]
    assert main([*common, "policy.recipe.steps=4", "judge.episodes=1", "judge.num_slots=2"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert f"training vla for 4 steps on {data}, into {folder}" in printed
    assert [line for line in printed if line.startswith("step 1: loss ")]  # not only when many have been done
    assert f"checkpoint: {folder}" in printed
    told = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert {"loss", "validation_error", "success", "success/reach"} <= {name for line in told for name in line}
    assert json.loads((folder / "training.json").read_text())["config"]["policy"]["recipe"]["steps"] == 4

    assert main([*common, "policy.recipe.steps=4"]) == 2  # nothing is overwritten
    assert "resume=true" in capsys.readouterr().err
    assert main([*common, "policy.recipe.steps=4", "resume=true"]) == 0
    assert main([*common, "policy.recipe.steps=8", "resume=true"]) == 2  # its schedule would be another
    assert "another training" in capsys.readouterr().err

    run = tmp_path / "run"
    settings = ["world.task=reach", *CAMERAS, "protocol.episodes=2", "report.videos=0", f"run.dir={run}"]
    assert main(["run", "policy=vla", f"policy.checkpoint={folder}", "policy.samples=2", *settings]) == 0
    for episode in Run(run):
        assert episode.status == "done"
        assert (episode.policy["disagreement"] >= 0).all()
    assert main(["run", "policy=vla", f"policy.checkpoint={folder}", "world.task=reach"]) == 2
    assert "add world.cameras=[front]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["policy=vlaa", "data=x"], "did you mean vla"),
        (["policy=vla"], "data=… is missing"),
        (["policy=vla", "data=nowhere"], "does not exist"),
        (["policy=vla", "data={data}", "policy.recipe.stepz=3"], "stepz"),
        (["policy=vla", "data={data}", "+policy.recipe.momentum=3"], "unknown setting of recipe 'momentum'"),
        (["policy=vla", "data={data}", "policy.kind=vlb"], "unknown kind of policy 'vlb'"),
        (["policy=vla", "data={data}", "policy.observation=[image_side]"], "image_side"),
        (
            ["policy=vla", "data={data}", "policy.validation=1.5"],
            "validation is a share, from 0 on and below 1; received 1.5",
        ),
        (["policy=vla", "data={data}", "policy.device=tpu"], "cpu, cuda or auto"),
        (["policy=vla", "data={data}", "policy._target_=os.getcwd"], "no Trainer"),
        (["policy=vla", "data={data}", "policy.settings.head=softmax"], "flow or gaussian"),
        (["policy=vla", "data={data}", "policy.settings.dim=wide"], "settings.dim is a whole number; received 'wide'"),
        (["policy=vla", "data={data}", "log.tensorboard=maybe"], "log.tensorboard is true or false; received 'maybe'"),
        (["policy=vla", "data={data}", "resume=maybe"], "resume is true or false; received 'maybe'"),
        (["policy=vla", "data={data}", "judge.episodes=many"], "judge.episodes is a whole number of at least 0"),
        (["policy=vla", "data={data}", "judge.num_slots=0"], "judge.num_slots is a whole number of at least 1"),
        (["worldmodel=ensemble", "data={data}", "judge.episodes=2"], "ensemble is no policy"),
        *(
            ([learner, "data={data}", setting.format(section)], told)
            for learner, section in (("policy=vla", "policy"), ("worldmodel=ensemble", "worldmodel"))
            for setting, told in (
                ("{}.observation=[]", "observation is a name or a list of names, at least one; received []"),
                ("{}.tasks=[]", "tasks is a name or a list of names, at least one; received []"),
                ("{}.tasks=[foo]", "'foo'; available: reach"),
                ("{}.threads=x", ".threads is a whole number or null; received 'x'"),
                ("{}.threads=0", "threads is a whole number from 1 to 1024; received 0"),
                ("{}.recipe.seed=1e23", "recipe.seed is a whole number; received 1e+23"),
                ("{}.recipe.seed=100000000000000000000000", "recipe.seed is a whole number from 0 to"),
                ("{}.recipe.warmup=-1", "recipe.warmup is a whole number of at least 0; received -1"),
                ("{}.validation=abc", ".validation is a number; received 'abc'"),
                ("{}.device=null", ".device is a text; received None"),
                ("{}.memory_gib=0", "memory_gib is a number above 0; received 0"),
                ("{}.name=null", ".name is a name without slashes; received None"),
                ("{}.name=../x", ".name is a name without slashes; received '../x'"),
            )
        ),
    ],
)
def test_a_training_that_cannot_be_is_refused_in_one_line(
    data: Path, tmp_path: Path, settings: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [setting.format(data=data) for setting in settings]
    assert main(["train", *given, f"dir={tmp_path / 'trained'}"]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert len(error.strip().splitlines()) == 1
    assert not (tmp_path / "trained").exists()
