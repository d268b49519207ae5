"""The command line: what works, and what bad input gets: one line, exit code 2, nothing written."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
import pytest

from simeval import Memory, Policy, PolicyStep, Run, StepKey
from simeval.cli import main
from simeval.testing import ToySimulator
from simeval.types import Observation

LEARNED = ["world=learned", "world.checkpoint=tabletop", "policy=uniform"]
SMALL = ["world.task=reach", "world.num_slots=2", "protocol.episodes=2", "report.videos=0"]


class Pixels(Policy):
    observation_keys = ("image_side",)
    value = 0.0
    size = 5

    def act(
        self, observation: Observation, instruction: Sequence[str], memory: Memory, keys: Sequence[StepKey]
    ) -> PolicyStep:
        return PolicyStep(np.full((len(keys), self.size), self.value, dtype=np.float32), memory)


class Shapeless(Pixels):
    observation_keys = ()
    size = 4


class NotANumber(Pixels):
    observation_keys = ()
    value = np.nan


class Terminated(Pixels):
    """Asks its own process to end, once."""

    observation_keys = ()
    calls = 0

    def act(
        self, observation: Observation, instruction: Sequence[str], memory: Memory, keys: Sequence[StepKey]
    ) -> PolicyStep:
        Terminated.calls += 1
        if Terminated.calls == 25:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().act(observation, instruction, memory, keys)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recorded") / "run"
    assert main(["run", *SMALL, f"run.dir={path}"]) == 0
    return path


def _never(*_: object) -> None:
    raise RuntimeError("no reset today")


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    before = sorted(Path().rglob("*"))
    assert main(list(arguments)) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("simeval: ")
    assert sorted(Path().rglob("*")) == before
    return lines[0]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["world=tabletp"], "unknown world 'tabletp'; did you mean tabletop"),
        (["policy=experts"], "unknown policy 'experts'; did you mean expert"),
        (["policy=mine"], "unknown policy 'mine'; available: act"),
        (["policy=mine"], "; a file of your own is found with --config-dir FOLDER"),
        (["protocol=pared"], "unknown protocol 'pared'; did you mean paired"),
        (["experiment=demos"], "unknown experiment 'demos'; did you mean demo"),
        (["world.task=stak"], "unknown task of world 'tabletop' 'stak'; did you mean stack"),
        (["world.tusk=stack"], "unknown setting of world 'tusk'; did you mean task"),
        (["protocol.episodes=0"], "protocol.episodes=0: expected a whole number of at least 1"),
        (["protocol.episodes=-3"], "at least one episode"),
        (["protocol.episodes=many"], "protocol.episodes"),
        (["protocol.horizon=0"], "protocol.horizon=0"),
        (["protocol.horizon=1000000000000"], "protocol.horizon=1000000000000: expected a whole number of at most"),
        (["world.num_slots=1000000000000"], "num_slots is a whole number from 1 to 65536; received 1000000000000"),
        (["protocol=recovery", "protocol.draws=1000000000000"], "protocol.draws=1000000000000: expected"),
        (["protocol=matched", "perturbation=delay", "protocol.configurations=1000000000000"], "of at most 10000"),
        (["protocol=matched", "perturbation=delay", "protocol.replications=1000000000000"], "of at most 10000"),
        (["protocol=paired"], "a paired comparison needs at least two policies"),
        (["protocol.tasks=[stak]"], "unknown task of world 'tabletop' 'stak'"),
        (["seed=-1"], "seed is a whole number from 0 to 9223372036854775807; received -1"),
        (["seed=x"], "received 'x'"),
        (["seed=true"], "received True"),
        (["seed=1e23"], "received 1e+23"),
        (["report.videos=abc"], "report.videos is a whole number of at least 0; received 'abc'"),
        (["record.signals=no"], "record.signals is true or false; received 'no'"),
        (["run.retry_errors=no"], "run.retry_errors is true or false; received 'no'"),
        (["protocol.stop_on_success=no"], "protocol.stop_on_success is true or false; received 'no'"),
        (["protocol.tasks=[]"], "protocol.tasks=[]"),
        (["protocol.tasks=stak"], "unknown task of world 'tabletop' 'stak'"),
        (["run.name=../../evil"], "run.name is a name without slashes; received '../../evil'"),
        (["run.dir=/dev/null/x"], "/dev/null"),
        (["+protocol.perturbations=[{axs: identity}]"], "is no perturbation"),
        (["+protocol.perturbations=[{axis: actuation.replace}]"], "needs params.value"),
        (["world._target_=os.mkdir"], "is no World"),
        (["policy._target_=numpy.load"], "is no Policy"),
        (["policy._target_=policies.basic.Unifrom"], "there is no 'policies.basic.Unifrom' to import"),
        (["policy._target_=my_package.Mine"], "there is no 'my_package.Mine' to import"),
        (["world.num_slots=0"], "num_slots"),
        (["world.cameras=[side]"], "side"),
        (["record.images=jpeg"], "record.images"),
        (["run.resume=true"], "run.dir"),
        (["run.resume=true", "run.dir=nowhere"], "nothing to resume"),
        (["world=gymnasium", "world.id=HalfCheeta-v5", "policy=uniform"], "HalfCheetah-v5"),
        (
            ["world=gymnasium", "world.id=HalfCheetah-v5"],
            "world 'gymnasium' has no expert of its own (these have: arm, balls, libero, metaworld, ogbench, tabletop)",
        ),
        (
            ["world=gymnasium", "world.id=HalfCheetah-v5", "policy=noisy_expert"],
            "such as policy=uniform; policies that need none: ",
        ),
        (["world=gymnasium"], "world.id"),
        (["policy=replay", "policy.run=nowhere"], "nowhere does not exist"),
        (["policy=replay"], "policy.run"),
        (["experiment=experts", "world=tabletop"], "both world=tabletop and worlds"),
        (["policy=expert,expert"], "names something twice"),
        (["protocol.tasks=5"], "protocol.tasks is a name or a list of names or null; received 5"),
        (["record=5"], "record=5: record is a section, whose settings are record.images, record.signals"),
        (["run=null"], "run=None: run is a section"),
        (["~report.videos"], "report.videos cannot be dropped; set report.videos=… instead"),
        (["run.dir=${oc.env:NOPE}"], "run: "),
        (["run.dir=[a]"], "run.dir is the name of a folder; received ['a']"),
        (["policy=openpi", "policy.url=5"], "policy 'openpi': url is a text; received 5"),
        (["policy=openpi", "policy.url=here"], "'here' is no websocket address"),
        (["=3"], "SETTING=VALUE"),
        (["world=7"], "unknown world '7'; available: "),
        (["world=gymnasium", "world.id=Ant-v5", "policy=vla"], "has no vla of its own (these have: tabletop)"),
        (["world=gymnasium", "world.id=Ant-v5", "policy=diffusion"], "no diffusion of its own (these have: metaworld)"),
        (["protocol=fidelity"], "a model is held against a World; only 'tabletop' is here"),
        (["experiment=worldgym", "protocol.truth=modl"], "unknown world protocol.truth 'modl'; did you mean model"),
        (
            ["experiment=worldgym", "protocol.truth=model"],
            "episodes cannot begin in world 'model' where they do in 'tabletop' (the start of task 'reach'",
        ),
        (["world=blind", "policy=uniform"], "world.checkpoint must be given"),
        (["~run.dir"], "~run.dir drops nothing"),
        (["world"], "world"),
        (["perturbation=camera"], "applies no perturbation"),
        (["world.name=null"], "world.name is a name without slashes; received None"),
        (["world.threads=x"], "world 'tabletop': threads is a whole number or null; received 'x'"),
        (["+world.foo=1"], "unknown setting of world 'tabletop' 'foo'"),
        (["policy=vla", "policy.device=null"], "policy 'vla': device is a text; received None"),
        (["policy=cem", "policy.optimiser.elites=x"], "policy 'cem': optimiser.elites is a whole number; received 'x'"),
        ([*LEARNED, "world.penalty=x"], "world 'learned': penalty is a number; received 'x'"),
        ([*LEARNED, "world.device=null"], "world 'learned': device is a text; received None"),
        ([*LEARNED, "world.penalty=-1"], "penalty is a number of at least 0; received -1"),
        (["world=blind", *LEARNED[1:], "world.penalty=x"], "penalty is a number of at least 0; received 'x'"),
        (["world=blind", *LEARNED[1:], "world.device=null"], "device is cpu, cuda or auto; received None"),
    ],
)
def test_bad_settings(capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str) -> None:
    assert expected in refused(capsys, "run", *arguments)


def test_a_command_that_comes_later_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert "not there yet" in refused(capsys, "import", "data")


def test_a_world_that_ships_no_trained_policy_says_how_to_get_one(capsys: pytest.CaptureFixture[str]) -> None:
    told = refused(capsys, "serve", "policy=vla", "world=metaworld")
    assert "'metaworld' has no vla of its own (these have: tabletop); train one with `simeval train policy=vla`" in told


def test_a_suite_that_is_not_installed_is_named_with_its_pip_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "metaworld", None)
    for module in [name for name in sys.modules if name.startswith("envs.metaworld")]:
        monkeypatch.delitem(sys.modules, module)
    assert "pip install" in refused(capsys, "run", "world=metaworld", "policy=uniform")


def test_a_run_is_recorded_scored_and_reported_and_never_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *SMALL, "run.dir=run"]) == 0
    printed = capsys.readouterr().out
    assert "reach" in printed
    assert "run/report.html" in printed
    run = Run("run")
    assert list(run.episodes["status"]) == ["done", "done"]
    assert json.loads(Path("run/scores.json").read_text())["overall"]["n"] == 2
    assert "holds a run" in refused(capsys, "run", *SMALL, "run.dir=run")


def test_resuming_with_more_episodes_keeps_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *SMALL, "run.dir=run"]) == 0
    first = {episode.id: episode.action for episode in Run("run")}
    assert main(["run", "run.dir=run", "run.resume=true", "protocol.episodes=3"]) == 0
    run = Run("run")
    assert len(run) == 3
    for rollout_id, action in first.items():
        np.testing.assert_array_equal(run[rollout_id].action, action)
    capsys.readouterr()
    text = refused(capsys, "run", "run.dir=run", "run.resume=true", "world=metaworld")
    assert "keeps its world, which is tabletop and not metaworld" in text
    assert "cannot be resumed" in refused(capsys, "run", "run.dir=run", "run.resume=true", "world.success_hold=1")
    assert "did you mean episodes" in refused(capsys, "run", "run.dir=run", "run.resume=true", "protocol.epsodes=3")


def test_what_a_run_has_may_be_said_again_when_it_is_resumed(capsys: pytest.CaptureFixture[str]) -> None:
    design = ["world=tabletop", "policy=expert,uniform", "protocol=paired", *SMALL, "run.dir=run"]
    assert main(["run", *design]) == 0
    assert main(["run", *design, "protocol.episodes=3", "run.resume=true"]) == 0
    assert len(Run("run")) == 6
    capsys.readouterr()
    resume = ["run", "run.dir=run", "run.resume=true"]
    text = refused(capsys, *resume, "policy=expert")
    assert "policy=expert: a resumed run keeps its policy, which is expert, uniform and not expert" in text
    assert "its protocol, which is paired and not monte_carlo" in refused(capsys, *resume, "protocol=monte_carlo")
    assert "experiment=experts: a resumed run keeps its world" in refused(capsys, *resume, "experiment=experts")
    assert "unknown policy 'experts'" in refused(capsys, *resume, "policy=experts")


def test_a_policy_that_was_changed_cannot_go_on_under_its_old_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *SMALL, "policy=noisy_expert", "run.dir=run"]) == 0
    capsys.readouterr()
    resume = ["run", "run.dir=run", "run.resume=true"]
    text = refused(capsys, *resume, "policy.sigma=0.1", "protocol.episodes=3")
    assert "policy 'noisy_expert'" in text
    assert "0.3" in text
    assert "0.1" in text
    assert "did you mean sigma" in refused(capsys, *resume, "policy.sgma=0.1")
    assert main([*resume, "seed=1"]) == 0
    assert "the seed was 0 and is 1: the run holds episodes of both" in capsys.readouterr().out
    assert len(Run("run")) == 4


def test_settings_may_follow_options_and_name_classes_in_the_working_directory(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("mine/policy").mkdir(parents=True)
    Path("mine/policy/still.yaml").write_text("name: still\n_target_: still_policy.Still\n")
    Path("still_policy.py").write_text("from policies.basic import Constant\nclass Still(Constant):\n    pass\n")
    assert main(["run", "--config-dir", "mine", *SMALL, "policy=still", "run.dir=run"]) == 0
    assert set(Run("run").episodes["policy"]) == {"still"}
    with pytest.raises(SystemExit):
        main(["run", "--no-such-option"])
    with pytest.raises(SystemExit):
        main(["score", "run", "policy=uniform"])


def test_a_run_received_from_somebody_builds_worlds_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *SMALL, "run.dir=run"]) == 0
    manifest = Path("run/run.json")
    info = json.loads(manifest.read_text())
    for world in (
        {"name": "tabletop", "_target_": "os.mkdir", "path": "made"},
        {"name": "tabletop", "_target_": "envs.tabletop.Tabletop", "task": {"_target_": "os.mkdir", "path": "made"}},
    ):
        info["config"]["world"] = world
        manifest.write_text(json.dumps(info))
        capsys.readouterr()
        assert "is no World" in refused(capsys, "export", "run", "--to", "minari")
        assert main(["report", "run", "--videos", "1"]) == 0
        assert "is no World" in capsys.readouterr().out
    assert not Path("made").exists()


def test_images_are_kept_in_the_trace_as_videos_or_not_at_all(capsys: pytest.CaptureFixture[str]) -> None:
    cameras = ["world.cameras=[front]", "world.image_size=64", "protocol.horizon=12"]
    shown = {}
    for mode in ("lossless", "video", "none"):
        assert main(["run", *SMALL, *cameras, f"record.images={mode}", f"run.dir={mode}"]) == 0
        shown[mode] = {episode.id: list(episode.observation) for episode in Run(mode)}
        videos = sorted(str(path) for path in Path(mode).glob("videos/*/*.mp4"))
        assert len(videos) == (2 if mode == "video" else 0)
    assert all("image_front" in keys for keys in shown["lossless"].values())
    assert not any("image_front" in keys for mode in ("video", "none") for keys in shown[mode].values())
    for episode in Run("lossless"):
        kept = episode.observation["image_front"]
        reader = imageio_ffmpeg.read_frames(f"video/videos/{episode.id}/image_front.mp4")
        next(reader)
        frames = [np.frombuffer(frame, np.uint8).reshape(64, 64, 3) for frame in reader]
        assert len(frames) == len(kept)
        assert np.abs(frames[5].astype(float) - kept[5]).mean() < 12
    Path("video/traces/000000.h5").unlink()
    capsys.readouterr()
    assert main(["run", "run.dir=video", "run.resume=true"]) == 0


@pytest.mark.parametrize("content", ["[]", "null", '"x"', "{}", "{"])
def test_a_manifest_that_is_none_is_refused(capsys: pytest.CaptureFixture[str], small_run: Path, content: str) -> None:
    shutil.copytree(small_run, "run")
    Path("run/run.json").write_text(content)
    capsys.readouterr()
    assert "run.json" in refused(capsys, "score", "run")


ALTERED: dict[str, Any] = {
    "run_id": 3,
    "config": "x",
    "worlds": ["tabletop"],
    "worlds.tabletop": {"a": 1},
    "policies": None,
    "policies.tabletop": "expert",
    "policies.tabletop.expert": 1.5,
    "sessions": {"a": 1},
    "sessions.0": "today",
    "sessions.0.versions": [1],
    "sessions.0.hardware": "fast",
}
"""Entries of a manifest, and what they cannot be."""


def _altered(recorded: Path, entry: str, value: Any) -> None:
    """A copy ``run`` of a run, with another value of an entry of its manifest."""
    shutil.copytree(recorded, "run")
    info = json.loads(Path("run/run.json").read_text())
    *parents, last = [int(part) if part.isdigit() else part for part in entry.split(".")]
    node = info
    for part in parents:
        node = node[part]
    node[last] = value
    Path("run/run.json").write_text(json.dumps(info))


@pytest.mark.parametrize("entry", ALTERED)
def test_an_entry_of_a_manifest_that_is_of_another_type_is_named(
    capsys: pytest.CaptureFixture[str], small_run: Path, entry: str
) -> None:
    _altered(small_run, entry, ALTERED[entry])
    capsys.readouterr()
    for command in (["score", "run"], ["run", "run.dir=run", "run.resume=true"]):
        assert f"run.json: {entry} is " in refused(capsys, *command)


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("config.run", 3),
        ("config.record", "x"),
        ("config.report", [1]),
        ("config.world", "tabletop"),
        ("config.worlds", {"tabletop": 3}),
        ("config.policy", ["expert"]),
        ("config.protocol", 3),
        ("config.seed", "x"),
        ("config.world", {"name": {"a": 1}}),
        ("config.world", "${"),
    ],
)
def test_a_recorded_configuration_that_is_none_is_one_line(
    capsys: pytest.CaptureFixture[str], small_run: Path, entry: str, value: Any
) -> None:
    _altered(small_run, entry, value)
    capsys.readouterr()
    assert entry.partition(".")[2] in refused(capsys, "run", "run.dir=run", "run.resume=true")
    assert main(["report", "run", "--videos", "1"]) in (0, 2)
    assert "Traceback" not in "".join(capsys.readouterr())


def test_the_design_of_a_run_cannot_be_changed_by_resuming_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *SMALL, "run.dir='my run'"]) == 0
    capsys.readouterr()
    resume = ["run", "run.dir='my run'", "run.resume=true"]
    before = Path("my run/run.json").read_bytes()
    for change in ("protocol.horizon=20", "protocol.snapshot_every=10", "protocol.stop_on_success=false"):
        assert change.partition("=")[0] in refused(capsys, *resume, change)
    assert Path("my run/run.json").read_bytes() == before
    assert main([*resume, "world.num_slots=3", "protocol.tasks=[reach]", "protocol.episodes=3"]) == 0
    assert len(Run("my run")) == 3


def test_a_run_inside_another_run_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *SMALL, "run.dir=run"]) == 0
    capsys.readouterr()
    assert "is inside the run" in refused(capsys, "run", *SMALL, "run.dir=run/traces/again")


def test_a_full_disk_or_a_missing_folder_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("simeval.trace.write_shard", full)
        assert main(["run", *SMALL, "run.dir=run"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "No space left on device" in line
    assert main(["run", "run.dir=run", "run.resume=true"]) == 0


def test_policies_named_side_by_side_are_paired_and_runs_can_be_compared(capsys: pytest.CaptureFixture[str]) -> None:
    both = ["protocol=paired", "policy=expert,uniform", "run.dir=both"]
    assert main(["run", *SMALL, *both]) == 0
    assert set(Run("both").episodes["policy"]) == {"expert", "uniform"}
    for policy in ("expert", "uniform"):
        assert main(["run", *SMALL, f"policy={policy}", f"run.dir={policy}"]) == 0
    capsys.readouterr()
    assert main(["compare", "expert", "uniform"]) == 0
    assert "McNemar" in capsys.readouterr().out
    assert main(["score", "both"]) == 0
    assert main(["report", "both"]) == 0


@pytest.mark.parametrize("damage", ["truncated", "foreign"])
@pytest.mark.parametrize("command", ["score", "report"])
def test_damaged_traces_are_named(
    capsys: pytest.CaptureFixture[str], small_run: Path, damage: str, command: str
) -> None:
    shutil.copytree(small_run, "run")
    capsys.readouterr()
    for shard in Path("run/traces").glob("*.h5"):
        shard.write_bytes(shard.read_bytes()[:500] if damage == "truncated" else b"hello")
    assert "cannot be read" in refused(capsys, command, "run")


def test_what_is_no_run_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["score", "x"], ["report", "x"], ["compare", "x", "y"], ["export", "x", "--to", "minari"]):
        assert "does not exist" in refused(capsys, *command)


def test_a_policy_whose_observations_are_missing_is_refused_before_anything_is_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    overrides = ["policy=uniform", "policy._target_=test_cli.Pixels"]
    assert "reads observation 'image_side', which world 'tabletop' does not give" in refused(capsys, "run", *overrides)


@pytest.mark.parametrize("broken", ["Shapeless", "NotANumber"])
def test_a_policy_that_only_ever_fails_is_an_error_of_the_run(capsys: pytest.CaptureFixture[str], broken: str) -> None:
    assert main(["run", *SMALL, "policy=uniform", f"policy._target_=test_cli.{broken}", "run.dir=run"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "action" in line
    expected = {"Shapeless": "world 'tabletop' expects numbers of shape (2, 5)", "NotANumber": "slot 0, step 0"}
    assert expected[broken] in line


def test_a_run_that_is_terminated_keeps_what_had_finished_and_can_be_gone_on_with(
    capsys: pytest.CaptureFixture[str],
) -> None:
    heard = signal.getsignal(signal.SIGTERM)
    settings = ["policy=uniform", "policy._target_=test_cli.Terminated", "protocol.horizon=10", "protocol.episodes=8"]
    assert main(["run", *SMALL, *settings, "run.dir=run"]) == 143
    assert signal.getsignal(signal.SIGTERM) is heard
    error = capsys.readouterr().err
    assert "go on with `simeval run run.dir=run run.resume=true`" in error
    assert error.endswith("simeval: terminated\n")
    finished = {episode.id: episode.action for episode in Run("run")}
    assert len(finished) == 4
    assert main(["run", "run.dir=run", "run.resume=true"]) == 0
    run = Run("run")
    assert len(run) == 8
    for rollout_id, action in finished.items():
        np.testing.assert_array_equal(run[rollout_id].action, action)


def test_a_traceback_is_shown_only_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "world=nowhere", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_python_m_simeval_is_the_same_command() -> None:
    done = subprocess.run([sys.executable, "-m", "simeval", "score", "nowhere"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("simeval: nowhere does not exist")
    assert subprocess.run([sys.executable, "-m", "simeval"], capture_output=True).returncode == 2


def test_a_command_works_where_its_streams_are_closed() -> None:
    command = f"{shlex.quote(sys.executable)} -m simeval run world=tabletop {shlex.join(SMALL)} run.dir=quiet >&- 2>&-"
    done = subprocess.run(["sh", "-c", command], timeout=300)
    assert done.returncode == 0
    assert len(Run("quiet").episodes) == 2


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["report", "{run}", "--videos", "-1"], "--videos"),
        (["serve", "policy=uniform", "world=tabletop", "serve.port=70000"], "serve.port"),
    ],
)
def test_numbers_out_of_their_range_are_refused(
    capsys: pytest.CaptureFixture[str], small_run: Path, arguments: list[str], expected: str
) -> None:
    assert expected in refused(capsys, *(argument.format(run=small_run) for argument in arguments))


def test_what_was_not_run_is_marked_otherwise_than_what_failed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ToySimulator, "reset", _never)
    Path("world").mkdir()
    Path("world/broken.yaml").write_text("_target_: simeval.testing.ToySimulator\n")
    assert main(["check", "world=broken", "--config-dir", "."]) == 1
    shown = capsys.readouterr().out
    assert "✗" in shown
    assert "–" in shown
    assert "were not run" in shown


@pytest.mark.parametrize("command", ["run", "check"])
def test_a_setting_that_does_not_exist_is_named_with_the_nearest(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert "did you mean policy" in refused(capsys, command, "polic=expert")
    assert "'foo'" in refused(capsys, command, "foo=1")


@pytest.mark.parametrize("steps", ["0", "-3"])
def test_forks_that_are_followed_for_no_step_certify_nothing(capsys: pytest.CaptureFixture[str], steps: str) -> None:
    assert "--steps" in refused(capsys, "check", "world=tabletop", "--tasks", "reach", "--steps", steps)
