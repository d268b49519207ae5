"""Verdicts beside a run: ``judges/<name>/`` in its folder, keyed by rollout; the trace is never altered.

``judge.json`` says who judged, ``verdicts.jsonl`` has a line per verdict, appended only; a later line about a rollout
stands over an earlier one, and a last line that a kill cut short is left out.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from simeval.episode import Episode
from simeval.errors import ConfigError, TraceError, unknown
from simeval.films import with_films
from simeval.folder import write_json
from simeval.judge import Judge, Verdict
from simeval.reader import Run
from simeval.trace import lock_folder

SCHEMA = "simeval-judge/1"
_FOLDER, _INFO, _VERDICTS = "judges", "judge.json", "verdicts.jsonl"
_NAME = re.compile(r"[\w][\w.-]*")


class Verdicts(Mapping[str, Verdict]):
    """The verdicts of one judge on a run, by rollout id.

    ``worlds``: those whose episodes it was asked to judge; of the others nothing is said.
    """

    def __init__(self, name: str, folder: Path, info: Mapping[str, Any], verdicts: Mapping[str, Verdict]):
        self.name = name
        self.folder = folder
        self.worlds: tuple[str, ...] = tuple(info["worlds"])
        self.fingerprint: str = info["fingerprint"]
        self._verdicts = verdicts

    def __getitem__(self, rollout_id: str) -> Verdict:
        return self._verdicts[rollout_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._verdicts)

    def __len__(self) -> int:
        return len(self._verdicts)


def judges_of(run: Run) -> list[str]:
    """The names of the judges whose verdicts lie beside a run."""
    return sorted(path.parent.name for path in (run.path / _FOLDER).glob(f"*/{_INFO}"))


def read_verdicts(run: Run, name: str) -> Verdicts:
    """The verdicts of a judge on ``run``; ``ConfigError`` where it has none, ``TraceError`` where they were altered."""
    if name not in judges_of(run):
        raise ConfigError(f"{unknown('judge of this run', name, judges_of(run))}; `simeval judge {run.path}` judges it")
    folder = run.path / _FOLDER / name
    info = _info(folder, run)
    return Verdicts(name, folder, info, dict(_lines(folder / _VERDICTS)))


def judge_run(
    run: Run,
    judge: Judge,
    name: str,
    worlds: Sequence[str],
    config: Mapping[str, Any],
    watch: Callable[[Sequence[str]], Iterator[str]] = iter,
) -> Verdicts:
    """Judge the finished episodes of ``worlds`` in ``run`` that have no verdict of this judge yet; returns all of them.

    Where the judge came to none before, it is asked again. ``config`` is recorded; ``watch`` goes through the ids of
    what is to be judged, for a progress bar. ``ConfigError`` where another judge has this name.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"the name of a judge is letters, digits, dots and dashes; received {name!r}")
    folder = run.path / _FOLDER / name
    found: dict[str, Verdict] = {}
    before: tuple[str, ...] = ()
    if (folder / _INFO).exists():
        known = read_verdicts(run, name)
        if known.fingerprint != judge.fingerprint:
            raise ConfigError(
                f"{folder} has the verdicts of another judge ({known.fingerprint}; this one is {judge.fingerprint}); "
                "give this one a name of its own by name=…"
            )
        found, before = dict(known), known.worlds
    wanted = [e.id for e in run if e.status == "done" and e.length and e.rollout.world in worlds]
    due = [each for each in wanted if each not in found or found[each].success is None]
    info = {
        "schema": SCHEMA,
        "run_id": run.run_id,
        "fingerprint": judge.fingerprint,
        "worlds": sorted({*before, *worlds}),
        "config": dict(config),
    }
    _judge_all(run, judge, folder, info, watch(due))
    return read_verdicts(run, name)


def _judge_all(run: Run, judge: Judge, folder: Path, info: Mapping[str, Any], due: Iterator[str]) -> None:
    first = next(due, None)
    if first is None and (folder / _INFO).exists():
        return
    verdict = None if first is None else judge(_shown(run, first))  # nothing is written before a judge has judged
    folder.mkdir(parents=True, exist_ok=True)
    with lock_folder(folder):
        write_json(folder / _INFO, info)
        _repair(folder / _VERDICTS)
        with open(folder / _VERDICTS, "a", encoding="utf-8") as file:
            if first is not None and verdict is not None:
                _append(file, first, verdict)
            for rollout_id in due:
                _append(file, rollout_id, judge(_shown(run, rollout_id)))


def _shown(run: Run, rollout_id: str) -> Episode:
    return with_films(run, run.whole(rollout_id))


def _append(file: Any, rollout_id: str, verdict: Verdict) -> None:
    file.write(json.dumps({"id": rollout_id, **verdict.to_json()}, ensure_ascii=False) + "\n")
    file.flush()


def _info(folder: Path, run: Run) -> Mapping[str, Any]:
    path = folder / _INFO
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
        known = info["schema"] == SCHEMA and isinstance(info["fingerprint"], str) and isinstance(info["worlds"], list)
        owner = info["run_id"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TraceError(f"{path} cannot be read ({error!r}); the file was altered") from None
    if not known:
        raise TraceError(f"{path} is no description of a judge ({SCHEMA}); the file was altered")
    if owner != run.run_id:
        raise TraceError(f"{folder} has verdicts on another run ({owner}, not {run.run_id}); move it out of {run.path}")
    return info


def _lines(path: Path) -> Iterator[tuple[str, Verdict]]:
    if not path.exists():
        return
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith("\n"):
                return
            try:
                data = json.loads(line)
                yield str(data["id"]), Verdict.from_json(data)
            except (ValueError, KeyError, TypeError) as error:
                raise TraceError(f"{path}: line {number} is no verdict ({error}); the file was altered") from None


def _repair(path: Path) -> None:
    """Cut off a last line that a kill left incomplete."""
    if path.exists():
        with open(path, "r+b") as file:
            file.truncate(file.read().rfind(b"\n") + 1)
