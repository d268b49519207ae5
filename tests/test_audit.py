"""A trace that was altered is noticed, whichever of its parts it was, by all that read it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from simeval.compare import compare
from simeval.errors import TraceError
from simeval.export import export
from simeval.reader import Run
from simeval.report import report
from simeval.score import score
from simeval.testing.runs import made_episode, made_episodes, made_rollout, write_made_run


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    episodes = [*made_episodes({"p": 0.6}, ["t"], 4), made_episode(made_rollout("p", "t", 9), False, error="it broke")]
    pending = [made_rollout("p", "t", 20)]
    return write_made_run(tmp_path_factory.mktemp("audit") / "run", episodes, pending=pending).path


@pytest.fixture
def copy(recorded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(recorded, tmp_path / "copy"))


def _shard(folder: Path) -> tuple[Path, str]:
    path = next((folder / "traces").glob("*.h5"))
    with h5py.File(path) as file:
        return path, next(name for name in file if file[name].attrs["success"])


def _rewritten(group: h5py.Group, name: str, change: Callable[[np.ndarray], Any]) -> None:
    array = group[name][...]
    del group[name]
    group[name] = change(array)


ARRAYS: dict[str, Callable[[h5py.Group], None]] = {
    "success is false": lambda group: group["success"].write_direct(np.zeros(group["success"].shape, bool)),
    "success is numbers": lambda group: _rewritten(group, "success", lambda a: a.astype(np.float32)),
    "success is not a number": lambda group: _rewritten(group, "success", lambda a: np.full(len(a), np.nan)),
    "success is text": lambda group: _rewritten(group, "success", lambda a: a.astype("S5")),
    "success is square": lambda group: _rewritten(group, "success", lambda a: np.tile(a, (2, 1)).T),
    "reward differs": lambda group: group["reward"].write_direct(np.ones(group["reward"].shape)),
    "reward is longer": lambda group: _rewritten(group, "reward", lambda a: np.append(a, 0.0)),
    "action is shorter": lambda group: _rewritten(group, "action", lambda a: a[1:]),
    "truncated is longer": lambda group: _rewritten(group, "truncated", lambda a: np.append(a, False)),
    "terminated is numbers": lambda group: _rewritten(group, "terminated", lambda a: a.astype(np.int64)),
    "an observation is cut": lambda group: _rewritten(group, "observation/state", lambda a: a[:-1]),
    "a signal is cut": lambda group: _rewritten(group, "signals/distance", lambda a: a[:-1]),
    "action is a group": lambda group: (group.__delitem__("action"), group.create_group("action")),
}
ARRAYS |= {
    f"no {name}": lambda group, name=name: group.__delitem__(name)
    for name in ("action", "reward", "terminated", "truncated", "success")
}
ATTRIBUTES = {
    "success": False,
    "length": 7,
    "return": 99.0,
    "status": "error",
    "task": "other",
    "policy": "better",
    "instruction": "do something else",
    "rollout": "{}",
    "ending": "{}",
}


@pytest.mark.parametrize("what", ARRAYS)
def test_an_altered_array_is_an_error_that_names_the_episode(copy: Path, what: str) -> None:
    path, name = _shard(copy)
    with h5py.File(path, "r+") as file:
        ARRAYS[what](file[name])
    with pytest.raises(TraceError, match=name):
        score(Run(copy))


@pytest.mark.parametrize("attribute", ATTRIBUTES)
@pytest.mark.parametrize("gone", [False, True], ids=["altered", "gone"])
def test_an_altered_attribute_is_an_error_that_names_the_episode(copy: Path, attribute: str, gone: bool) -> None:
    path, name = _shard(copy)
    with h5py.File(path, "r+") as file:
        del file[name].attrs[attribute]
        if not gone:
            file[name].attrs[attribute] = ATTRIBUTES[attribute]
    with pytest.raises(TraceError, match=name):
        score(Run(copy))


ENDINGS = {
    "status": "error",
    "success_hold": 2,
    "held": 4,
    "solved_at_reset": True,
    "error": "it broke",
    "blame": "policy",
    "wall_s": 1e9,
    "unheard_of": 1,
}


@pytest.mark.parametrize("field", ENDINGS)
def test_an_altered_ending_in_the_trace_is_an_error_that_names_the_episode(copy: Path, field: str) -> None:
    path, name = _shard(copy)
    with h5py.File(path, "r+") as file:
        ending = json.loads(file[name].attrs["ending"])
        file[name].attrs["ending"] = json.dumps({**ending, field: ENDINGS[field]})
    with pytest.raises(TraceError, match=name):
        score(Run(copy))


def _alter_index(folder: Path, name: str, change: Callable[[dict[str, Any]], None], event: str = "done") -> None:
    index = folder / "episodes.jsonl"
    lines = [json.loads(line) for line in index.read_text().splitlines()]
    for line in lines:
        if line["id"] == name and line["event"] == event:
            change(line)
    index.write_text("".join(json.dumps(line) + "\n" for line in lines))


INDEX: dict[str, Callable[[dict[str, Any]], None]] = {
    f"ending.{field}": lambda line, field=field, value=value: line["ending"].update({field: value})
    for field, value in ENDINGS.items()
}
INDEX |= {
    f"summary.{field}": lambda line, field=field, value=value: line["ending"]["summary"].update({field: value})
    for field, value in {"success": False, "success_step": 3, "length": 7, "total_reward": 99.0}.items()
}
INDEX |= {
    "no ending": lambda line: line.pop("ending"),
    "ending is text": lambda line: line.update(ending="fine"),
    "another policy": lambda line: line["rollout"].update(policy="better"),
    "another task": lambda line: line["rollout"]["start"].update(task="other"),
    "no horizon": lambda line: line["rollout"].pop("horizon"),
}


@pytest.mark.parametrize("what", INDEX)
def test_an_altered_line_of_the_index_is_an_error_that_names_the_episode(copy: Path, what: str) -> None:
    _, name = _shard(copy)
    _alter_index(copy, name, INDEX[what])
    with pytest.raises(TraceError, match=name):
        score(Run(copy))


def test_an_altered_request_that_was_not_run_is_an_error_that_names_it(copy: Path) -> None:
    name = made_rollout("p", "t", 20).id
    _alter_index(copy, name, lambda line: line["rollout"].update(policy="better"), "requested")
    with pytest.raises(TraceError, match=name):
        score(Run(copy))


@pytest.mark.parametrize("attribute", ["run_id", "noise_layout", "schema"])
def test_a_trace_file_of_another_run_or_version_is_refused(copy: Path, attribute: str) -> None:
    path, _ = _shard(copy)
    with h5py.File(path, "r+") as file:
        file.attrs[attribute] = "another"
    with pytest.raises(TraceError, match="another"):
        score(Run(copy))


@pytest.mark.parametrize("reader", ["score", "report", "compare", "export"])
def test_whatever_reads_a_run_notices(recorded: Path, copy: Path, reader: str) -> None:
    path, name = _shard(copy)
    with h5py.File(path, "r+") as file:
        del file[name]["action"]
    run = Run(copy)
    read: dict[str, Callable[[], Any]] = {
        "score": lambda: score(run),
        "report": lambda: report(run),
        "compare": lambda: compare(Run(recorded), run),
        "export": lambda: export(run, "minari"),
    }
    if reader == "export":
        pytest.importorskip("minari", reason="minari is not installed: pip install 'simeval[minari]'")
    with pytest.raises(TraceError, match=f"{name}.*no array 'action'"):
        read[reader]()


def test_text_that_hdf5_cannot_hold_is_no_alteration(tmp_path: Path) -> None:
    episode = made_episode(made_rollout("p", "t", 0), False, error="odd \0 and \ud800")
    assert score(write_made_run(tmp_path / "odd", [episode]))["requested"]["error"] == 1
