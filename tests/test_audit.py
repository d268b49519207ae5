"""A trace that was altered is noticed, whichever of its parts it was, by all that read it."""

import json
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from simeval.cli import main
from simeval.compare import compare
from simeval.episode import ArraySource, Checkpoint, Episode
from simeval.errors import TraceError
from simeval.export import export
from simeval.reader import Run
from simeval.report import report
from simeval.score import score
from simeval.tape import Frames
from simeval.testing.runs import made_episode, made_episodes, made_rollout, write_made_run
from simeval.types import Snapshot


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    episodes = [*made_episodes({"p": 0.6}, ["t"], 4), made_episode(made_rollout("p", "t", 9), False, error="it broke")]
    pending = [made_rollout("p", "t", 20)]
    return write_made_run(tmp_path_factory.mktemp("audit") / "run", episodes, pending=pending).path


@pytest.fixture
def copy(recorded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(recorded, tmp_path / "copy"))


def _shard(folder: Path) -> tuple[Path, str, int]:
    """A trace file, and the id and table row of an episode in it that succeeded."""
    path = next((folder / "traces").glob("*.h5"))
    with h5py.File(path) as file:
        row = int(np.flatnonzero(file["episodes/success"][...])[0])
        return path, file["episodes/id"][row].decode(), row


def _steps(file: h5py.File, row: int) -> slice:
    begin = int(file["episodes/action_row"][row])
    return slice(begin, begin + int(file["episodes/length"][row]))


def _rewritten(group: h5py.Group, name: str, change: Callable[[np.ndarray], Any]) -> None:
    array = group[name][...]
    del group[name]
    group[name] = change(array)


def _set(path: str, index: int, change: Callable[[Any], Any]) -> Callable[[h5py.File, slice], None]:
    """Change the row ``index`` of an episode's array; of its observations and signals too, in a file of one layout."""

    def alter(file: h5py.File, steps: slice) -> None:
        row = int(np.count_nonzero(file["episodes/action_row"][...] < steps.start)) if "/" in path else 0
        at = range(steps.start, steps.stop)[index] + row
        file[f"0/{path}"][at] = change(file[f"0/{path}"][at])

    return alter


VALUES: dict[str, Callable[[h5py.File, slice], None]] = {
    "success is false": lambda file, steps: file["0/success"].__setitem__(steps, False),
    "reward differs": lambda file, steps: file["0/reward"].__setitem__(steps, 1.0),
    "reward is not a number": lambda file, steps: file["0/reward"].__setitem__(steps, np.nan),
    "an action is not a number": _set("action", 3, lambda row: np.full_like(row, np.nan)),
    "an action differs in its last bit": _set("action", 3, lambda row: np.nextafter(row, np.float32(2))),
    "it terminates half-way": _set("terminated", 5, np.logical_not),
    "it is cut half-way": _set("truncated", 5, np.logical_not),
    "it is not cut at its end": _set("truncated", -1, np.logical_not),
    "success comes and goes": _set("success", 5, np.logical_not),
    "an observation differs": _set("observation/state", 3, lambda row: row + 1),
    "a signal differs": _set("signals/distance", 3, lambda row: row + 1),
}
COLUMNS: dict[str, tuple[str, Callable[[h5py.Group], None]]] = {
    "success is numbers": ("success", lambda group: _rewritten(group, "success", lambda a: a.astype(np.float32))),
    "success is not a number": (
        "success",
        lambda group: _rewritten(group, "success", lambda a: np.full(len(a), np.nan)),
    ),
    "success is text": ("success", lambda group: _rewritten(group, "success", lambda a: a.astype("S5"))),
    "success is square": ("success", lambda group: _rewritten(group, "success", lambda a: np.tile(a, (2, 1)).T)),
    "reward is text": ("reward", lambda group: _rewritten(group, "reward", lambda a: a.astype("S5"))),
    "reward is square": ("reward", lambda group: _rewritten(group, "reward", lambda a: np.tile(a, (2, 1)).T)),
    "reward is longer": ("reward", lambda group: _rewritten(group, "reward", lambda a: np.append(a, 0.0))),
    "reward is one number": ("reward", lambda group: _rewritten(group, "reward", lambda a: 0.0)),
    "action is shorter": ("action", lambda group: _rewritten(group, "action", lambda a: a[1:])),
    "truncated is longer": ("truncated", lambda group: _rewritten(group, "truncated", lambda a: np.append(a, False))),
    "terminated is numbers": ("terminated", lambda group: _rewritten(group, "terminated", lambda a: a.astype(int))),
    "an observation is cut": (
        "observation/state",
        lambda group: _rewritten(group, "observation/state", lambda a: a[:-1]),
    ),
    "a signal is cut": ("signals/distance", lambda group: _rewritten(group, "signals/distance", lambda a: a[:-1])),
    "action is a group": ("action", lambda group: (group.__delitem__("action"), group.create_group("action"))),
}
COLUMNS |= {
    f"no {name}": (name, lambda group, name=name: group.__delitem__(name))
    for name in ("action", "reward", "terminated", "truncated", "success")
}
UNDECIDED: dict[str, Callable[[h5py.Group], None]] = {
    "no observation": lambda group: group["observation"].__delitem__("state"),
    "no signals": lambda group: group.__delitem__("signals"),
    "an observation more": lambda group: group["observation"].create_dataset(
        "goal", data=np.zeros(len(group["observation/state"]))
    ),
    "action is text": lambda group: _rewritten(group, "action", lambda a: a.astype("S8")),
    "action is objects": lambda group: _rewritten(group, "action", lambda a: a.astype(str).astype(object)),
    "action is wider": lambda group: _rewritten(group, "action", lambda a: a.astype(np.float64)),
    "action is other numbers": lambda group: _rewritten(group, "action", lambda a: a.view(np.int32)),
    "action is flat": lambda group: _rewritten(group, "action", lambda a: a[:, :1]),
    "observation is another's": lambda group: group.move("signals/distance", "observation/distance"),
}
"""Alterations of columns on which no outcome depends."""
TABLE = {
    "content": "{}",
    "success": False,
    "length": 7,
    "return": 99.0,
    "status": "error",
    "task": "other",
    "policy": "better",
    "instruction": "do something else",
    "rollout": "{}",
    "ending": "{}",
    "action_row": 3,
    "observation_row": 3,
}


@pytest.mark.parametrize("what", VALUES)
def test_altered_steps_are_an_error_that_names_the_episode(copy: Path, what: str) -> None:
    path, name, row = _shard(copy)
    with h5py.File(path, "r+") as file:
        VALUES[what](file, _steps(file, row))
    with pytest.raises(TraceError, match=name):
        score(Run(copy))


@pytest.mark.parametrize("what", COLUMNS)
def test_an_altered_column_is_an_error_that_names_the_file_and_the_column(copy: Path, what: str) -> None:
    path, _, _ = _shard(copy)
    name, alter = COLUMNS[what]
    with h5py.File(path, "r+") as file:
        alter(file["0"])
    with pytest.raises(TraceError, match=f"{path.name}.*(group 0 has no array '{name}'|array 0/{name} )"):
        score(Run(copy))


@pytest.mark.parametrize("what", UNDECIDED)
def test_an_altered_column_on_which_no_outcome_depends_is_an_error_too(copy: Path, what: str) -> None:
    path, _, _ = _shard(copy)
    with h5py.File(path, "r+") as file:
        UNDECIDED[what](file["0"])
    with pytest.raises(TraceError, match=f"{path.name}.*(action|observation/|signals/)"):
        score(Run(copy))


@pytest.mark.parametrize("column", TABLE)
def test_an_altered_value_of_the_table_is_an_error_that_names_the_episode(copy: Path, column: str) -> None:
    path, name, row = _shard(copy)
    with h5py.File(path, "r+") as file:
        file[f"episodes/{column}"][row] = TABLE[column]
    with pytest.raises(TraceError, match=name):
        score(Run(copy))


@pytest.mark.parametrize("change", ["gone", "cut", "another kind"])
@pytest.mark.parametrize("column", ["id", "layout", *TABLE])
def test_an_altered_column_of_the_table_is_an_error_that_names_the_file(copy: Path, column: str, change: str) -> None:
    path, _, _ = _shard(copy)
    with h5py.File(path, "r+") as file:
        values = file[f"episodes/{column}"][...]
        del file[f"episodes/{column}"]
        if change == "cut":
            file[f"episodes/{column}"] = values[:-1]
        elif change == "another kind":
            file[f"episodes/{column}"] = np.full(len(values), 0.5)
    with pytest.raises(TraceError, match=path.name):
        score(Run(copy))


@pytest.mark.parametrize("number", [-1, 1, 2])
def test_an_episode_moved_to_another_group_is_noticed(copy: Path, number: int) -> None:
    path, _, row = _shard(copy)
    with h5py.File(path, "r+") as file:
        file["episodes/layout"][row] = number
    with pytest.raises(TraceError, match=path.name):
        score(Run(copy))


def test_an_id_that_the_index_does_not_know_is_named(copy: Path) -> None:
    path, _, row = _shard(copy)
    with h5py.File(path, "r+") as file:
        file["episodes/id"][row] = "f" * 20
    with pytest.raises(TraceError, match="f" * 20):
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
    path, name, row = _shard(copy)
    with h5py.File(path, "r+") as file:
        endings = file["episodes/ending"]
        endings[row] = json.dumps({**json.loads(endings[row]), field: ENDINGS[field]})
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
    "another content": lambda line: line["content"].update(action="0" * 16),
    "no content": lambda line: line.pop("content"),
    "content is a list": lambda line: line.update(content=["action"]),
    "content is numbers": lambda line: line["content"].update(action=3),
}


@pytest.mark.parametrize("what", INDEX)
def test_an_altered_line_of_the_index_is_an_error_that_names_the_episode(copy: Path, what: str) -> None:
    _, name, _ = _shard(copy)
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
    path, _, _ = _shard(copy)
    with h5py.File(path, "r+") as file:
        file.attrs[attribute] = "another"
    with pytest.raises(TraceError, match="another"):
        score(Run(copy))


@pytest.mark.parametrize("reader", ["score", "report", "compare", "export"])
def test_whatever_reads_a_run_notices(recorded: Path, copy: Path, reader: str) -> None:
    path, _, _ = _shard(copy)
    with h5py.File(path, "r+") as file:
        del file["0/action"]
    run = Run(copy)
    read: dict[str, Callable[[], Any]] = {
        "score": lambda: score(run),
        "report": lambda: report(run),
        "compare": lambda: compare(Run(recorded), run),
        "export": lambda: export(run, "minari"),
    }
    if reader == "export":
        pytest.importorskip("minari", reason="minari is not installed: pip install 'simeval[minari]'")
    with pytest.raises(TraceError, match=f"{path.name}.*no array 'action'"):
        read[reader]()


def test_text_that_hdf5_cannot_hold_is_no_alteration(tmp_path: Path) -> None:
    episode = made_episode(made_rollout("p", "t", 0), False, error="odd \0 and \ud800")
    assert score(write_made_run(tmp_path / "odd", [episode]))["requested"]["error"] == 1


@pytest.mark.parametrize("gone", ["0", "episodes"])
def test_a_group_that_is_gone_is_an_error_that_names_the_file(copy: Path, gone: str) -> None:
    path = next((copy / "traces").glob("*.h5"))
    with h5py.File(path, "r+") as file:
        del file[gone]
    with pytest.raises(TraceError, match=path.name):
        score(Run(copy))


@pytest.fixture
def filmed(tmp_path: Path) -> Path:
    """A run of one episode with a camera and a checkpoint."""
    made = made_episode(made_rollout("p", "t", 0), True, image_size=32)
    arrays = dict(made.source.arrays)
    frames = np.asarray(arrays["observation/image_front"])
    padded = np.concatenate([frames, np.zeros_like(frames[: -len(frames) % 4])])
    chunks = tuple(zlib.compress(padded[at : at + 4].tobytes(), 1) for at in range(0, len(padded), 4))
    arrays["observation/image_front"] = Frames(frames.shape, frames.dtype, 4, chunks)
    kept = {3: Checkpoint(3, Snapshot("w", {"x": np.arange(9)}), {}, 0).to_bytes()}
    episode = Episode(made.rollout, made.ending, ArraySource(arrays, kept))
    return write_made_run(tmp_path / "filmed", [episode]).path


def _flip(path: Path, name: str) -> None:
    """Flip a byte of a dataset where it lies in the file."""
    with h5py.File(path) as file:
        data = file[name].id
        place = data.get_offset() or data.get_chunk_info(1).byte_offset
    with open(path, "r+b") as file:
        file.seek(place + 40)
        byte = file.read(1)[0]
        file.seek(place + 40)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize(("command", "name"), [("score", "0/observation/image_front"), ("report", "snapshots/data")])
def test_an_audit_reads_images_and_checkpoints_too(
    filmed: Path, command: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = filmed / "traces" / "000000.h5"
    assert main([command, str(filmed), "--audit"]) == 0
    assert "1 episodes, 2 image arrays and checkpoints among them, are as they were recorded" in capsys.readouterr().out
    _flip(path, name)
    assert main([command, str(filmed), "--audit"]) == 2
    assert made_rollout("p", "t", 0).id in capsys.readouterr().err


@pytest.mark.parametrize("name", ["0/observation/image_front", "snapshots"])
def test_images_and_checkpoints_that_are_gone_are_missed_by_every_reader(filmed: Path, name: str) -> None:
    with h5py.File(filmed / "traces" / "000000.h5", "r+") as file:
        del file[name]
    with pytest.raises(TraceError, match=made_rollout("p", "t", 0).id):
        score(Run(filmed))


def test_numbers_stored_as_images_are_not_passed_over(copy: Path) -> None:
    path, _, _ = _shard(copy)
    with h5py.File(path, "r+") as file:
        lengths = file["episodes/length"][...]
        del file["0/action"]
        rows = int(np.sum(-(-lengths // 4) * 4))
        data = file["0"].create_dataset("action", data=np.zeros((rows, 4)), chunks=(4, 4), compression="gzip")
        data.attrs["align"] = 4
    with pytest.raises(TraceError, match="its action"):
        score(Run(copy))


def test_traces_from_before_digests_are_still_read(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = copy / "episodes.jsonl"
    lines = [json.loads(line) for line in index.read_text().splitlines()]
    for line in lines:
        line.pop("content", None)
    index.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with h5py.File(_shard(copy)[0], "r+") as file:
        del file["episodes/content"]
    assert main(["score", str(copy), "--audit"]) == 0
    assert "5 episodes were recorded without digests" in capsys.readouterr().out


def test_no_flipped_byte_of_an_episode_goes_unnoticed(filmed: Path) -> None:
    path = filmed / "traces" / "000000.h5"
    sound = path.read_bytes()
    with h5py.File(path) as file:
        places = [
            data.id.get_offset() + at
            for data in file["0"].values()
            if isinstance(data, h5py.Dataset)
            for at in range(0, data.id.get_storage_size(), 37)
        ]
    for place in places:
        path.write_bytes(sound[:place] + bytes([sound[place] ^ 0x10]) + sound[place + 1 :])
        with pytest.raises(TraceError):
            score(Run(filmed))


def test_nothing_is_kept_in_a_heap_on_whose_damage_hdf5_hangs(recorded: Path) -> None:
    path, _, _ = _shard(recorded)
    kinds = []
    with h5py.File(path) as file:
        file.visititems(lambda _, item: kinds.append(item.dtype.kind) if isinstance(item, h5py.Dataset) else None)
        kinds += [file.attrs.get_id(name).dtype.kind for name in file.attrs]
    assert "S" in kinds
    assert "O" not in kinds


def test_texts_of_any_length_as_they_were_kept_before_are_still_read(recorded: Path, copy: Path) -> None:
    for path in (copy / "traces").glob("*.h5"):
        with h5py.File(path, "r+") as file:
            for name in ("schema", "run_id", "noise_layout"):
                file.attrs[name] = file.attrs[name].decode()
            for name in ("rollout", "ending", "content", "task", "instruction", "policy", "status"):
                texts = [item.decode() for item in file["episodes"][name][...]]
                del file["episodes"][name]
                file["episodes"].create_dataset(name, data=texts, dtype=h5py.string_dtype())
    assert {**score(Run(copy)), "run": ""} == {**score(Run(recorded)), "run": ""}


@pytest.mark.parametrize("part", ["rollout", "ending"])
def test_an_entry_of_the_index_that_lacks_a_part_is_named(copy: Path, part: str) -> None:
    index = copy / "episodes.jsonl"
    _, name, _ = _shard(copy)
    lines = [json.loads(line) for line in index.read_text().splitlines()]
    for line in lines:
        if line["id"] == name and part in line:
            line[part] = {"other": 1}
    index.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(TraceError, match=rf"episodes\.jsonl: the entry of {name} cannot be read"):
        Run(copy)[name]
