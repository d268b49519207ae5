"""Exports open with the other tool's own package and hold the recorded arrays."""

import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from simeval.errors import ConfigError, TraceError, UnsupportedError
from simeval.export import export
from simeval.reader import Run
from simeval.testing.runs import made_episode, made_episodes, made_rollout, write_made_run
from simeval.types import WorldSpec

minari = pytest.importorskip("minari", reason="minari is not installed: pip install 'simeval[minari]'")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path / "minari"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return write_made_run(tmp_path / "my run", made_episodes({"expert": 0.9, "noisy": 0.3}, ["t"], 3, image_size=48))


def _load(dataset_id: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return minari.load_dataset(dataset_id)


def _aligned(exported: Any, recorded: Any) -> bool:
    """Whether every observation stands at the step at which it was recorded, and every action between its two."""
    same_length = len(exported.observations["state"]) == len(exported.actions) + 1
    return (
        same_length
        and np.array_equal(exported.observations["state"], recorded.observation["state"])
        and np.array_equal(exported.actions, recorded.action)
    )


def test_a_minari_dataset_holds_the_recorded_episodes(root: Path, run: Run) -> None:
    (folder,) = export(run, "minari")
    dataset = _load("simeval/my-run-v0")
    assert folder == root / "simeval" / "my-run-v0"
    assert (dataset.total_episodes, dataset.total_steps) == (6, sum(episode.length for episode in run))
    for exported, recorded in zip(dataset.iterate_episodes(), run, strict=True):
        assert _aligned(exported, recorded)
        assert np.array_equal(exported.rewards, recorded.reward)
        assert np.array_equal(exported.terminations, recorded.terminated)
        assert np.array_equal(exported.truncations, recorded.truncated)
        assert np.array_equal(exported.infos["success"][1:], recorded.success)
        assert np.array_equal(exported.infos["signals"]["distance"], recorded.signals["distance"])


def test_images_come_back_bit_for_bit_where_minari_would_use_jpeg(root: Path, tmp_path: Path) -> None:
    episode = made_episode(made_rollout("p", "t", 0), True, length=4, image_size=48)
    noise = np.random.Generator(np.random.Philox(1)).integers(0, 256, (5, 48, 48, 3), dtype=np.uint8)
    episode.source.arrays["observation/image_front"] = noise
    export(write_made_run(tmp_path / "noise", [episode]), "minari", "pictures-v3")
    (exported,) = _load("pictures-v3").iterate_episodes()
    assert np.array_equal(exported.observations["image_front"], noise)


def test_a_shift_by_one_is_noticed(root: Path, run: Run) -> None:
    export(run, "minari")
    exported, recorded = next(iter(_load("simeval/my-run-v0").iterate_episodes())), next(iter(run))
    assert _aligned(exported, recorded)
    early = type(exported)(**{**vars(exported), "observations": {"state": exported.observations["state"][1:]}})
    late = type(exported)(**{**vars(exported), "actions": np.roll(exported.actions, 1, axis=0)})
    assert not _aligned(early, recorded)
    assert not _aligned(late, recorded)


def test_an_episode_says_which_rollout_it_was(root: Path, run: Run) -> None:
    export(run, "minari")
    dataset = _load("simeval/my-run-v0")
    options = [metadata["options"] for metadata in dataset.storage.get_episode_metadata(range(6))]
    assert [option["rollout"] for option in options] == [episode.id for episode in run]
    assert {option["policy"] for option in options} == {"expert", "noisy"}
    assert [bool(option["success"]) for option in options] == [episode.succeeded for episode in run]


def test_a_branch_is_exported_whole_and_errors_are_left_out(root: Path, tmp_path: Path) -> None:
    parent = made_episode(made_rollout("p", "t", 0), False, length=20)
    child = made_episode(parent.rollout.branch(8, fresh=["policy"], seed=1), True, length=5)
    broken = made_episode(made_rollout("p", "t", 1), False, error="it broke")
    export(write_made_run(tmp_path / "tree", [parent, child, broken]), "minari", "tree-v0")
    whole, stitched = _load("tree-v0").iterate_episodes()
    assert len(whole.actions) == 20
    assert len(stitched.actions) == 13
    assert np.array_equal(stitched.observations["state"][:8], parent.observation["state"][:8])
    assert np.array_equal(stitched.observations["state"][8:], child.observation["state"])
    assert np.array_equal(stitched.actions, np.concatenate([parent.action[:8], child.action]))


def test_spaces_are_those_of_the_world_where_they_are_known(root: Path, tmp_path: Path) -> None:
    run = write_made_run(tmp_path / "spaces", [made_episode(made_rollout("p", "t", 0), True)])
    state = gymnasium.spaces.Box(-9, 9, (8,), np.float32)
    action = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    spec = WorldSpec("world", gymnasium.spaces.Dict({"state": state}), action, 0.1, ("t",))
    export(run, "minari", "known-v0", {"world": spec})
    export(run, "minari", "unknown-v0")
    assert _load("known-v0").action_space == action
    assert _load("known-v0").observation_space["state"] == state
    assert _load("unknown-v0").action_space == gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)


def test_a_dataset_is_never_overwritten_and_a_failed_export_leaves_nothing(
    root: Path, run: Run, tmp_path: Path
) -> None:
    (folder,) = export(run, "minari")
    before = (folder / "data" / "main_data.hdf5").read_bytes()
    with pytest.raises(TraceError, match="exists; nothing is overwritten"):
        export(run, "minari")
    assert (folder / "data" / "main_data.hdf5").read_bytes() == before
    mixed = [made_episode(made_rollout("p", "t", i), True, image_size=48 * (i % 2)) for i in range(2)]
    with pytest.raises(UnsupportedError, match="needs the same in all episodes"):
        export(write_made_run(tmp_path / "mixed", mixed), "minari", "mixed-v0")
    assert sorted(path.name for path in root.iterdir()) == ["simeval"]


def test_what_cannot_be_exported_is_refused_by_name(root: Path, run: Run, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="'robomimic' is not there yet; available: minari, lerobot"):
        export(run, "robomimic")
    with pytest.raises(ConfigError, match="export to minari has no settings; received action"):
        export(run, "minari", settings={"action": "intended"})
    with pytest.raises(ConfigError, match="did you mean minari"):
        export(run, "minary")
    with pytest.raises(ConfigError, match="no Minari dataset id"):
        export(run, "minari", "no version")
    empty = write_made_run(tmp_path / "empty", [], pending=[made_rollout("p", "t", 0)])
    with pytest.raises(TraceError, match="no finished episode"):
        export(empty, "minari")
