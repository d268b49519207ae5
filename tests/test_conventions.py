"""Conventions: declared by Worlds and policies, matched before anything runs, carried from data into checkpoints."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from envs.libero.conventions import CONVENTIONS, resolve
from policies.basic import Constant
from policies.chunked import Chunked, ChunkModel, Ensembled, Prediction
from policies.clipped import Clipped
from policies.learned import checkpoint
from policies.learned.demonstrations import Demonstrations
from policies.learned.policy import learned
from policies.noisy import ActionNoise
from policies.remote.answers import declaration
from policies.remote.layout import PRESETS as OPENPI
from policies.remote.links import ServerError
from policies.vla import VisionLanguageAction
from simeval.cli import main
from simeval.codec import pack, unpack
from simeval.conventions import PRESETS, UNDECLARED, Conventions, match, read_conventions
from simeval.errors import ConfigError
from simeval.evaluation import evaluate
from simeval.host.description import assume, describe
from simeval.host.policy_service import spec_from_plain, spec_to_plain
from simeval.matching import Declaring, declarations, fit, matches
from simeval.noise import StepKey
from simeval.policy import Memory, Policy, PolicyStep
from simeval.reader import Run
from simeval.rollout import Engine
from simeval.serve.service import PolicyService
from simeval.testing import ToyExpert, ToySimulator
from simeval.types import Observation
from simeval.wrappers import Delegate

torch.set_num_threads(1)  # tests run side by side


class Seeing(Policy):
    """Reads pictures and takes them, and its actions, to mean what ``conventions`` say."""

    observation_keys = ("image_top",)

    def __init__(self, **conventions: Any):
        self.conventions = Conventions(**conventions)

    def act(
        self, observation: Observation, instruction: Sequence[str], memory: Memory, keys: Sequence[StepKey]
    ) -> PolicyStep:
        return PolicyStep(np.zeros((len(keys), 2), np.float32), {})


class Blind(Seeing):
    """The same without eyes."""

    observation_keys = ("state",)


class Told(Delegate):
    """The toy simulator, which declares what it is told to."""

    def __init__(self, cameras: Sequence[str] = ("top",), num_slots: int = 2, **conventions: Any):
        super().__init__(ToySimulator(num_slots, cameras=cameras, image_size=24))
        self.conventions = Conventions(**conventions)


def test_all_differences_are_told_with_what_is_expected_given_and_to_be_set() -> None:
    world = Told(image_orientation="upright", gripper="plus_closes", settings={"gripper": "world.gripper"})
    policy = Seeing(
        image_orientation="mirrored",
        gripper="zero_closes",
        image_size=(96, 96),
        settings={"image_size": "policy.conventions.image_size"},
    )
    with pytest.raises(ConfigError) as refusal:
        fit(policy, world.spec)
    told = str(refusal.value)
    assert "image_orientation: the policy expects mirrored, world 'toy' gives upright (no setting changes it" in told
    assert "gripper: the policy expects zero_closes, world 'toy' gives plus_closes (set world.gripper)" in told
    assert "image_size: the policy expects 96, 96, world 'toy' gives 24, 24 (set policy.conventions.image_size)" in told
    with pytest.raises(ConfigError, match="image_orientation"), Engine({"toy": world}, {"toy": {"policy": policy}}):
        pass


def test_what_only_one_side_declares_is_no_difference_and_is_said() -> None:
    world = Told(gripper="plus_closes")
    fit(Seeing(action_frame="base"), world.spec)
    found = {item.name: (item.verdict, item.policy, item.world) for item in matches(Seeing(chunk=8), world.spec)}
    assert found["gripper"] == ("by one", None, "plus_closes")
    assert found["chunk"] == ("by one", 8, None)
    assert found["action_frame"] == ("not declared", None, None)
    assert found["image_size"] == ("by one", None, (24, 24))


def test_observations_that_are_not_read_are_not_compared() -> None:
    world = Told(image_orientation="upright", rotation="wxyz")
    fit(Blind(image_orientation="mirrored", rotation="xyzw"), world.spec)
    assert "image_orientation" not in {item.name for item in matches(Blind(), world.spec)}


def test_a_world_declares_what_its_spaces_say() -> None:
    declared = ToySimulator(1, cameras=("top",), image_size=16).spec.conventions
    assert (declared.image_size, declared.action_dim) == ((16, 16), 2)
    assert declared.control_dt == ToySimulator.control_dt
    assert ToySimulator(1).spec.conventions.image_size is None
    with pytest.raises(ConfigError, match=r"control_dt: the policy expects 0\.5, world 'toy' gives"):
        fit(Blind(control_dt=0.5), ToySimulator(1).spec)


class Chunks(ChunkModel):
    """Predicts nothing but zeros, and has conventions."""

    horizon, action_dim, observation_keys, fingerprint = 5, 2, ("state",), "zeros"
    conventions = Conventions(gripper="minus_closes")

    def predict(self, observation: Observation, instruction: Sequence[str], keys: Sequence[StepKey]) -> Prediction:
        return Prediction(np.zeros((len(keys), 5, 2), np.float32))


def test_wrappers_pass_conventions_on_and_chunks_say_how_many_actions_they_execute() -> None:
    spec = ToySimulator(1).spec
    wrapped = Clipped(ActionNoise(Chunked(Chunks(), execute=3, batch_size=2), 0.1)).bind(spec).conventions
    assert (wrapped.gripper, wrapped.chunk, wrapped.executed, wrapped.action_dim) == ("minus_closes", 5, 3, 2)
    assert Ensembled(Chunks(), batch_size=2).conventions.executed == 1
    world = Told(gripper="plus_closes", settings={"gripper": "world.gripper"})
    assert Delegate(world).spec.conventions == world.spec.conventions
    elsewhere = Delegate(ToySimulator(1))
    assume(elsewhere, unpack(pack(describe(world))))
    assert elsewhere.conventions == world.conventions
    assert elsewhere.conventions.settings == world.conventions.settings
    assert spec_from_plain(unpack(pack(spec_to_plain(world.spec)))).conventions == world.spec.conventions


def test_a_configuration_speaks_for_a_policy_that_cannot() -> None:
    policy = Declaring(Chunked(Chunks(), execute=3, batch_size=2), read_conventions({"gripper": "plus_closes"}))
    bound = fit(policy, Told(gripper="plus_closes").spec)
    assert (bound.conventions.gripper, bound.conventions.executed) == ("plus_closes", 3)
    assert bound.fingerprint == Chunked(Chunks(), execute=3, batch_size=2).fingerprint
    with pytest.raises(ConfigError, match=r"set policy\.conventions\.gripper"):
        fit(policy, Told(gripper="minus_closes").spec)


def test_libero_is_declared_as_its_presets_are() -> None:
    for name, convention in CONVENTIONS.items():
        assert convention.declared() == PRESETS[f"libero_{name}"]
    upright = resolve({"preset": "openpi", "orientation": "upright"}).declared()
    assert upright.image_orientation == "upright"
    assert upright.settings["image_orientation"] == "world.convention={preset: openpi, orientation: …}"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("libero_opnpi", "unknown preset of conventions 'libero_opnpi'; did you mean libero_openpi"),
        ({"griper": "plus_closes"}, "unknown convention 'griper'; did you mean gripper"),
        ({"gripper": "closes"}, "unknown gripper of a convention 'closes'"),
        ({"gripper": 1}, "is a word; received 1"),
        ({"chunk": "eight"}, "is a number; received 'eight'"),
        ({"action_dim": True}, "is a number; received True"),
        ({"proprio": "position"}, "is a list; received 'position'"),
        ({"image_size": [96]}, "a list of 2 int"),
    ],
)
def test_what_is_no_convention_is_refused(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_conventions(given)


def test_conventions_survive_json_and_presets_may_be_changed() -> None:
    changed = read_conventions({"preset": "libero_openpi", "image_size": 256, "rotation": "wxyz"})
    assert changed == replace(PRESETS["libero_openpi"], image_size=(256, 256), rotation="wxyz")
    assert Conventions.from_json(json.loads(json.dumps(changed.to_json()))) == changed
    assert UNDECLARED.to_json() == {}
    assert read_conventions({"preset": "libero_openpi", "gripper": None, "action_dim": None}) == replace(
        PRESETS["libero_openpi"], gripper=None, action_dim=None
    )


def trained(run: Run, folder: Path) -> Path:
    """A checkpoint that knows the data and has learned nothing."""
    data = Demonstrations([run], ("image_top", "state"), 4, ToySimulator.control_dt, validation=0.0)
    network = VisionLanguageAction(data.features, data.vocabulary, "flow", 32, 2, 1, 1, 8)
    numbers, actions = data.moments()
    network.number_statistics.fit(numbers)
    network.action_statistics.fit(actions)
    checkpoint.save(folder, network, {})
    return folder


def test_a_checkpoint_is_refused_under_other_conventions_than_those_of_its_data(tmp_path: Path) -> None:
    world = Told(image_orientation="upright", gripper="plus_closes")
    evaluate(world, ToyExpert(), episodes=2, path=tmp_path / "run")
    run = Run(tmp_path / "run")
    assert run.conventions == declarations({"toy": world}, {"toy": {"policy": ToyExpert()}})
    policy = learned(trained(run, tmp_path / "policy"), execute=2, device="cpu")
    assert fit(policy, world.spec).conventions.image_size == (24, 24)
    with pytest.raises(ConfigError, match="image_orientation: the policy expects upright, world 'toy' gives mirrored"):
        fit(policy, Told(image_orientation="mirrored", gripper="plus_closes").spec)
    with pytest.raises(ConfigError, match="gripper: the policy expects plus_closes"):
        fit(policy, Told(image_orientation="upright", gripper="minus_closes").spec)
    fit(policy, Told().spec)


def test_runs_of_different_conventions_are_not_learned_from_together(tmp_path: Path) -> None:
    runs = []
    for name, orientation in (("a", "upright"), ("b", "mirrored")):
        evaluate(Told(image_orientation=orientation), ToyExpert(), episodes=1, path=tmp_path / name)
        runs.append(Run(tmp_path / name))
    with pytest.raises(ConfigError, match="image_orientation upright against mirrored"):
        Demonstrations(runs, ("image_top",), 4, ToySimulator.control_dt, validation=0.0)


def test_a_resumed_run_adds_the_conventions_of_its_new_policies(tmp_path: Path) -> None:
    world = Told(gripper="plus_closes")
    evaluate(world, {"a": Blind(action_frame="base")}, episodes=1, path=tmp_path / "run")
    evaluate(world, {"b": Blind(action_frame="world")}, episodes=1, path=tmp_path / "run")
    said = Run(tmp_path / "run").conventions
    assert said["policies"] == {"toy": {"a": {"action_frame": "base"}, "b": {"action_frame": "world"}}}
    assert said["worlds"]["toy"]["gripper"] == "plus_closes"


SMALL = ("world=tabletop", "world.task=reach", "world.num_slots=1", "policy=constant")


@pytest.mark.parametrize("command", ["run", "check"])
def test_the_command_line_refuses_in_one_line_before_anything_is_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([command, *SMALL, "+policy.conventions={gripper: zero_closes, chunk: 8}"]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert "gripper: the policy expects zero_closes, world 'tabletop' gives plus_closes" in captured.err
    assert "set policy.conventions.gripper" in captured.err
    assert list(tmp_path.iterdir()) == []
    if command == "check":
        rows = [line for line in captured.out.splitlines() if "gripper" in line]
        assert any("zero_closes" in row and "plus_closes" in row and "differs" in row for row in rows)
        assert any("chunk" in line and "by one" in line for line in captured.out.splitlines())


def test_the_command_line_runs_what_agrees_and_records_both_sides(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = ["+policy.conventions={gripper: plus_closes}", "protocol.episodes=1", "protocol.horizon=3"]
    assert main(["run", *SMALL, *settings, "report.videos=0", "run.dir=run"]) == 0
    said = Run(tmp_path / "run").conventions
    assert said["policies"]["tabletop"]["constant"] == {"gripper": "plus_closes"}
    assert said["worlds"]["tabletop"]["image_orientation"] == "upright"


def test_policies_that_declare_nothing_fit_everywhere() -> None:
    fit(Constant(0.0), Told(gripper="plus_closes", image_orientation="upright").spec)


def test_a_server_says_what_its_policy_takes_observations_to_mean() -> None:
    world = Told(gripper="minus_closes")
    said = PolicyService.of(Chunked(Chunks(), execute=3, batch_size=2), world).metadata
    declared = declaration(said, "ws://here")
    assert declared is not None
    assert (declared.conventions.gripper, declared.conventions.chunk) == ("minus_closes", 5)
    with pytest.raises(ServerError, match="gripper"):
        declaration({**said, "conventions": {"gripper": "sometimes"}}, "ws://here")
    with pytest.raises(ConfigError, match="gripper"):
        PolicyService.of(Chunked(Chunks(), execute=3, batch_size=2), Told(gripper="plus_closes"))


def test_openpis_policies_for_libero_expect_libero_as_openpi_shows_it() -> None:
    expected = OPENPI["libero"].conventions
    keys = ("image_agentview", "proprio")
    openpi, openvla = (CONVENTIONS[name].declared() for name in ("openpi", "openvla"))
    assert not [item for item in match(expected, openpi, keys) if item.differs]
    assert [item.name for item in match(expected, openvla, keys) if item.differs] == ["gripper"]
