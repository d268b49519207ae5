"""LeRobot: datasets that it reads, and policies that act here as they do there, whoever shares the batch."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hosted_policies import Doomed

from policies.history import History
from policies.lerobot import lerobot_policy
from policies.torch_noise import keyed_noise
from simeval import Run
from simeval.cli.build import policy_identity
from simeval.cli.compose import compose_config
from simeval.errors import ConfigError, SimevalError, TraceError, UnsupportedError
from simeval.export import export
from simeval.host import HostedPolicy
from simeval.noise import Key, StepKey, standard_normal
from simeval.policy import Memory, Policy, PolicyStep
from simeval.testing.runs import made_episode, made_rollout, write_made_run
from simeval.types import Observation, WorldSpec

ROOT = Path(__file__).parents[1]
PYTHON = ROOT / os.environ.get("SIMEVAL_LEROBOT_PYTHON", ".venv-lerobot/bin/python")
SIDE, EPISODES, STEPS, HORIZON, ACTION = 32, 3, 7, 8, 4

parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed: pip install 'simeval[lerobot]'")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    episodes = []
    for index in range(4):
        rollout = made_rollout("p", f"t{index % 2}", index)
        episode = made_episode(rollout, index != 3, length=10 + index, image_size=SIDE)
        arrays = episode.source.arrays
        arrays["observation/proprio"] = arrays["observation/state"][:, :3] / 4
        arrays["policy/intended"] = arrays["action"] / 2
        episodes.append(episode)
    return write_made_run(tmp_path_factory.mktemp("runs") / "made", episodes)


def read(folder: Path, what: str) -> Any:
    return parquet.read_table(folder / what).to_pydict()


def test_a_frame_is_an_observation_and_the_action_that_followed_it(run: Run, tmp_path: Path) -> None:
    (folder,) = export(run, "lerobot", str(tmp_path / "set"), settings={"fps": 20})
    frames = read(folder, "data/chunk-000/file-000.parquet")
    first = 0
    for number, episode in enumerate(run):
        rows = slice(first, first + episode.length)
        assert np.array_equal(frames["observation.state"][rows], episode.observation["proprio"][:-1])
        assert np.array_equal(np.array(frames["action"][rows], np.float32), episode.action)
        assert frames["episode_index"][rows] == [number] * episode.length
        assert frames["frame_index"][rows] == list(range(episode.length))
        assert frames["next.done"][rows] == [False] * (episode.length - 1) + [True]
        assert np.allclose(frames["timestamp"][rows], np.arange(episode.length) / 20)
        first += episode.length
    assert frames["index"] == list(range(first))


def test_images_are_stored_without_loss(run: Run, tmp_path: Path) -> None:
    import cv2

    (folder,) = export(run, "lerobot", str(tmp_path / "set"), settings={"fps": 20})
    pictures = read(folder, "data/chunk-000/file-000.parquet")["observation.images.front"]
    recorded = np.concatenate([episode.observation["image_front"][:-1] for episode in run])
    for picture, frame in zip(pictures, recorded, strict=True):
        decoded = cv2.imdecode(np.frombuffer(picture["bytes"], np.uint8), cv2.IMREAD_COLOR)[..., ::-1]
        assert np.array_equal(decoded, frame)


def test_statistics_are_those_of_every_frame_and_pixel(run: Run, tmp_path: Path) -> None:
    (folder,) = export(run, "lerobot", str(tmp_path / "set"), settings={"fps": 20})
    found = json.loads((folder / "meta" / "stats.json").read_text())
    action = np.concatenate([episode.action for episode in run]).astype(np.float64)
    pixels = np.concatenate([episode.observation["image_front"][:-1] for episode in run]) / 255
    for name, numbers, axis in (("action", action, 0), ("observation.images.front", pixels, (0, 1, 2))):
        stats = {key: np.array(value) for key, value in found[name].items()}
        assert stats["count"].tolist() == [len(numbers)]
        assert np.allclose(stats["mean"].ravel(), numbers.mean(axis))
        assert np.allclose(stats["std"].ravel(), numbers.std(axis))
        assert np.allclose(stats["min"].ravel(), numbers.min(axis))
        assert np.allclose(stats["max"].ravel(), numbers.max(axis))
        for key, share in (("q01", 0.01), ("q50", 0.5), ("q99", 0.99)):
            below = (numbers <= stats[key].reshape(1, *[1] * (numbers.ndim - 2), -1) + 1e-3).mean(axis)
            above = (numbers >= stats[key].reshape(1, *[1] * (numbers.ndim - 2), -1) - 1e-3).mean(axis)
            assert (below >= share - 1e-9).all()
            assert (above >= 1 - share - 1 / len(numbers)).all()
    assert np.shape(found["observation.images.front"]["mean"]) == (3, 1, 1)


def test_an_episodes_metadata_lead_back_to_its_rollout(run: Run, tmp_path: Path) -> None:
    (folder,) = export(run, "lerobot", str(tmp_path / "set"), settings={"fps": 20})
    about = read(folder, "meta/episodes/chunk-000/file-000.parquet")
    lengths = [episode.length for episode in run]
    assert about["length"] == lengths
    assert about["dataset_from_index"] == [0, *np.cumsum(lengths)[:-1]]
    assert about["dataset_to_index"] == np.cumsum(lengths).tolist()
    assert about["simeval/rollout"] == [episode.id for episode in run]
    assert about["simeval/success"] == [True, True, True, False]
    assert [tasks[0] for tasks in about["tasks"]] == [episode.rollout.start.instruction for episode in run]
    info = json.loads((folder / "meta" / "info.json").read_text())
    assert (info["total_episodes"], info["total_frames"], info["total_tasks"]) == (4, sum(lengths), 2)


def test_what_a_disturbed_policy_intended_can_be_exported_as_the_action(run: Run, tmp_path: Path) -> None:
    settings = {"fps": 20, "action": "intended", "succeeded": True, "state": "state", "environment_state": "state"}
    (folder,) = export(run, "lerobot", str(tmp_path / "set"), settings=settings)
    frames = read(folder, "data/chunk-000/file-000.parquet")
    succeeded = [episode for episode in run if episode.succeeded]
    intended = np.concatenate([episode.policy["intended"] for episode in succeeded])
    assert len(succeeded) == 3
    assert np.array_equal(np.array(frames["action"], np.float32), intended)
    assert len(frames["observation.state"][0]) == len(frames["observation.environment_state"][0]) == 8


def test_an_export_that_cannot_be_is_refused_and_leaves_nothing(run: Run, tmp_path: Path) -> None:
    export(run, "lerobot", str(tmp_path / "set"), settings={"fps": 20})
    spec = WorldSpec("world", spaces.Dict({}), spaces.Box(-1, 1, (4,)), 0.05, ("t",))
    with pytest.raises(TraceError, match="exists; nothing is overwritten"):
        export(run, "lerobot", str(tmp_path / "set"), {"world": spec})
    with pytest.raises(ConfigError, match=r"how many frames a second .* fps="):
        export(run, "lerobot", str(tmp_path / "other"))
    with pytest.raises(ConfigError, match="did you mean action"):
        export(run, "lerobot", str(tmp_path / "other"), {"world": spec}, {"actions": "intended"})
    with pytest.raises(ConfigError, match="did you mean intended"):
        export(run, "lerobot", str(tmp_path / "other"), {"world": spec}, {"action": "intend"})
    with pytest.raises(ConfigError, match=r"has no observation/joints; it has: action, observation/image_front"):
        export(run, "lerobot", str(tmp_path / "other"), {"world": spec}, {"state": "joints"})
    with pytest.raises(ConfigError, match="no LeRobot dataset; use namespace/name"):
        export(run, "lerobot", "name", {"world": spec})
    mixed = [made_episode(made_rollout("p", "t", i), True, image_size=SIDE * i) for i in range(2)]
    with pytest.raises(UnsupportedError, match="needs the same in all episodes"):
        export(write_made_run(tmp_path / "mixed", mixed), "lerobot", str(tmp_path / "other"), {"world": spec})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mixed", "set"]


def test_a_dataset_without_a_folder_goes_where_lerobot_looks(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path))
    spec = WorldSpec("world", spaces.Dict({}), spaces.Box(-1, 1, (4,)), 0.05, ("t",))
    (folder,) = export(run, "lerobot", specs={"world": spec})
    assert folder == tmp_path / "simeval" / "made"
    assert json.loads((folder / "meta" / "info.json").read_text())["fps"] == 20


class Window(Policy):
    """Acts by the sum over what it is shown, and remembers nothing."""

    observation_keys = ("proprio",)

    def act(
        self, observation: Observation, instruction: Sequence[str], memory: Memory, keys: Sequence[StepKey]
    ) -> PolicyStep:
        shown = observation["proprio"]
        return PolicyStep(shown[..., 0], {}, extras={"shown": shown.copy()})


def spec_of(**observation: tuple[int, ...]) -> WorldSpec:
    boxes = {
        key: spaces.Box(0, 255, shape, np.uint8) if key.startswith("image_") else spaces.Box(-9, 9, shape, np.float32)
        for key, shape in observation.items()
    }
    return WorldSpec("made", spaces.Dict(boxes), spaces.Box(-1, 1, (ACTION,), np.float32), 0.05, ("t",))


def test_a_history_begins_with_its_first_observation_and_holds_the_last_ones() -> None:
    policy = History(Window(), 3).bind(spec_of(proprio=(1,)))
    keys = [Key(0).stream("policy").key(0)]
    memory = policy.initial_memory(1)
    shown = []
    for number in (5.0, 6.0, 7.0, 8.0):
        step = policy.act({"proprio": np.full((1, 1), number, np.float32)}, ["go"], memory, keys)
        memory = step.memory
        shown.append(step.extras["shown"][0, :, 0].tolist())
    assert shown == [[5, 5, 5], [5, 5, 6], [5, 6, 7], [6, 7, 8]]


def test_what_torch_draws_comes_from_the_rows_keys() -> None:
    keys = [Key(seed).stream("policy").key(4) for seed in (1, 2)]

    def drawn(keys: Sequence[StepKey]) -> list[torch.Tensor]:
        n = len(keys)
        with keyed_noise(keys):
            return [
                torch.randn(n, 3),
                torch.randn(size=(n, 2), dtype=torch.float64),
                torch.rand((n, 2)),
                torch.normal(mean=0.0, std=2.0, size=(n, 2)),
                torch.randn_like(torch.zeros(n, 2)),
                torch.zeros(n, 2).normal_(),
                torch.multinomial(torch.tensor([[0.2, 0.3, 0.5]]).repeat(2 * n, 1), 1).reshape(n, 2),
            ]

    both, other = drawn(keys), drawn(keys[::-1])
    alone = drawn(keys[:1])
    assert np.array_equal(both[0].numpy(), standard_normal(keys, (3,), "torch", 0).astype(np.float32))
    for together, swapped, single in zip(both, other, alone, strict=True):
        assert torch.equal(together, swapped.flip(0))
        assert torch.equal(together[:1], single)
    assert not torch.equal(both[0][0], both[0][1])


def test_noise_that_no_key_can_be_found_for_is_refused() -> None:
    keys = [Key(0).stream("policy").key(0)] * 2
    with pytest.raises(UnsupportedError, match="which part belongs to which"), keyed_noise(keys):
        torch.randn(3)
    with pytest.raises(UnsupportedError, match="in a way that cannot be keyed"), keyed_noise(keys):
        torch.nn.functional.dropout(torch.ones(4))


def play(policy: Policy, frames: Sequence[Observation], seeds: Sequence[int]) -> list[PolicyStep]:
    memory, steps = policy.initial_memory(len(seeds)), []
    for step, frame in enumerate(frames):
        keys = [Key(seed).stream("policy").key(step) for seed in seeds]
        steps.append(policy.act(frame, ["go"] * len(seeds), memory, keys))
        memory = steps[-1].memory
    return steps


def test_a_hosted_policy_acts_as_in_this_process_though_its_worker_ends(tmp_path: Path) -> None:
    frames = [{"proprio": np.full((2, 1), float(step), np.float32)} for step in range(4)]
    (tmp_path / "died").touch()
    here = play(Doomed(str(tmp_path)), frames, (1, 2))
    (tmp_path / "died").unlink()
    hosted = HostedPolicy({"_target_": "hosted_policies.Doomed", "once": str(tmp_path)})
    try:
        bound = hosted.bind(spec_of(proprio=(1,)))
        there = play(bound, frames, (1, 2))
        due = bound.due({"inner": {"steps": np.array([0, 2])}})
    finally:
        hosted.close()
    assert all(np.array_equal(a.action, b.action) for a, b in zip(here, there, strict=True))
    processes = [step.extras["process"][0] for step in there]
    assert bound.batch_size == Doomed.batch_size
    assert due is not None
    assert due.tolist() == [False, True]
    assert os.getpid() not in processes
    assert processes[0] == processes[1] != processes[2] == processes[3]


def test_a_hosted_policy_whose_worker_ends_twice_is_that_episodes_error() -> None:
    hosted = HostedPolicy({"_target_": "hosted_policies.Doomed"}, label="policy 'doomed'")
    try:
        with pytest.raises(RuntimeError, match=r"policy 'doomed': process .* exited with code 3 .* so did"):
            play(hosted.bind(spec_of(proprio=(1,))), [{"proprio": np.zeros((1, 1), np.float32)}] * 4, (1,))
    finally:
        hosted.close()


def test_a_policy_that_reads_snapshots_is_not_hosted() -> None:
    with pytest.raises(UnsupportedError, match=r"snapshot cannot be hosted; leave its host\.python out"):
        HostedPolicy({"_target_": "hosted_policies.Seer"})


# With LeRobot itself

in_lerobot = [
    pytest.mark.lerobot,
    pytest.mark.skipif(not PYTHON.exists(), reason=f"LeRobot needs an interpreter of its own ({PYTHON}): make lerobot"),
]


def with_lerobot(test: Any) -> Any:
    for mark in in_lerobot:
        test = mark(test)
    return test


@pytest.fixture(scope="module")
def made(run: Run, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, np.ndarray]]:
    """A folder of policies that LeRobot made from an exported run, and what they did there."""
    folder = tmp_path_factory.mktemp("lerobot")
    export(run, "lerobot", str(folder / "set"), settings={"fps": 20})
    generator = np.random.Generator(np.random.Philox(3))
    inputs = {
        "proprio": generator.standard_normal((EPISODES, STEPS, 3)).astype(np.float32),
        "front": generator.integers(0, 256, (EPISODES, STEPS, SIDE, SIDE, 3), dtype=np.uint8),
        "noise": np.stack(
            [
                standard_normal(
                    [Key(seed).stream("policy").key(step) for step in range(0, STEPS, 3)], (HORIZON, ACTION), "torch", 0
                )
                for seed in range(EPISODES)
            ]
        ).astype(np.float32),
    }
    np.savez(folder / "inputs.npz", **inputs)
    script = [str(PYTHON), str(ROOT / "tests" / "lerobot_reference.py")]
    arguments = [str(folder / name) for name in ("set", "policies", "inputs.npz", "outputs.npz")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([*script, *arguments], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder, {**inputs, **np.load(folder / "outputs.npz")}


@with_lerobot
def test_lerobot_reads_an_exported_run_as_it_was_recorded(run: Run, made: tuple[Path, dict[str, np.ndarray]]) -> None:
    read = {name.removeprefix("read/"): value for name, value in made[1].items() if name.startswith("read/")}
    proprio = np.concatenate([episode.observation["proprio"][:-1] for episode in run])
    front = np.concatenate([episode.observation["image_front"][:-1] for episode in run])
    assert np.array_equal(read["observation.state"], proprio)
    assert np.array_equal(np.rint(read["observation.images.front"] * 255), front.transpose(0, 3, 1, 2))
    assert np.array_equal(read["action"], np.concatenate([episode.action for episode in run]))
    assert read["task"].tolist() == [e.rollout.start.instruction for e in run for _ in range(e.length)]
    assert read["next.done"].sum() == 4
    assert read["fps"] == 20


@with_lerobot
@pytest.mark.parametrize("name", ["act", "ensembled", "diffusion"])
def test_a_policy_acts_here_as_in_lerobots_own_loop(name: str, made: tuple[Path, dict[str, np.ndarray]]) -> None:
    there, here = np.clip(made[1][f"there/{name}"], -1, 1), made[1][f"here/{name}"]
    assert np.ptp(here) > 0.1
    assert np.abs(here - there).max() < 1e-4


@with_lerobot
@pytest.mark.parametrize("name", ["act", "ensembled", "diffusion"])
def test_who_shares_the_batch_makes_no_difference(name: str, made: tuple[Path, dict[str, np.ndarray]]) -> None:
    assert np.array_equal(made[1][f"alone/{name}"], made[1][f"here/{name}"][-1])


@with_lerobot
def test_a_hosted_policy_acts_as_in_lerobots_interpreter(made: tuple[Path, dict[str, np.ndarray]]) -> None:
    folder, given = made
    config = {"checkpoint": str(folder / "policies" / "act"), "device": "cpu", "batch_size": 4}
    policy = HostedPolicy({"_target_": "policies.lerobot.lerobot_policy", **config}, python=str(PYTHON), deadline=120)
    try:
        frames = [{"proprio": given["proprio"][:, t], "image_front": given["front"][:, t]} for t in range(STEPS)]
        steps = play(policy.bind(spec_of(proprio=(3,), image_front=(SIDE, SIDE, 3))), frames, range(EPISODES))
        with pytest.raises(ConfigError, match=r"trained on observation.images.front of shape \[3, 32, 32\]; world"):
            policy.bind(spec_of(proprio=(3,), image_front=(SIDE, 2 * SIDE, 3)))
        with pytest.raises(ConfigError, match=r"reads observation.state from 'proprio', which world 'made' does not"):
            policy.bind(spec_of(state=(3,), image_front=(SIDE, SIDE, 3)))
    finally:
        policy.close()
    assert np.array_equal(np.stack([step.action for step in steps], axis=1), given["here/act"])


@with_lerobot
def test_a_checkpoint_that_is_not_whole_is_refused(made: tuple[Path, dict[str, np.ndarray]]) -> None:
    said = {name.removeprefix("refused/"): str(text) for name, text in made[1].items() if name.startswith("refused/")}
    assert "mean of observation.state is missing; MEAN_STD needs it" in said["missing"]
    assert "std of observation.state is not finite" in said["infinite"]
    assert "names a class to import, os.path.join; none is" in said["class"]
    assert "weights do not fit config.json" in said["weights"]
    assert "of type 'tdmpc', which keeps a state of its own" in said["kind"]


def test_a_configuration_says_what_is_read_and_where_a_policy_runs_makes_no_difference() -> None:
    mapping = "policy.observation={observation.images.top: image_front, observation.state: [proprio, state]}"
    here, there = (
        compose_config("run", ["policy=lerobot", "policy.checkpoint=x", mapping, f"policy.host.python={python}"])
        for python in ("null", "/elsewhere/python")
    )
    assert here.policy.observation == {
        "observation.images.top": "image_front",
        "observation.state": ["proprio", "state"],
    }
    assert policy_identity(Window(), here.policy, here.world) == policy_identity(Window(), there.policy, there.world)


def test_batches_in_which_a_rows_place_would_matter_are_refused(tmp_path: Path) -> None:
    for size in (3, 6, 7):
        with pytest.raises(ConfigError, match=f"1, 2 or a multiple of 4; received {size}"):
            lerobot_policy(str(tmp_path), batch_size=size)


def test_without_lerobot_the_policy_says_how_to_get_it(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    try:
        import lerobot  # noqa: F401
    except ModuleNotFoundError:
        with pytest.raises(SimevalError, match=r"pip install lerobot==0\.4\.4 .*make lerobot.*policy\.host\.python"):
            lerobot_policy(str(tmp_path))
