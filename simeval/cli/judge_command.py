"""``simeval judge``: verdicts beside a run, and how far they are from the truth where that is known."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich.console import Console
from rich.progress import track

from simeval.cli.build import build_judge, has_worlds, recorded_config, world_configs
from simeval.cli.compose import compose_config, options_of, plain
from simeval.errors import ConfigError, unknown
from simeval.folder import write_json
from simeval.judge_analysis import audits
from simeval.judge_tables import print_audits
from simeval.outcomes import read_outcomes
from simeval.reader import Run
from simeval.settings import names
from simeval.verdicts import judge_run

_CONFIDENCE = 0.95
_MODELS = "worldmodels."
"""Worlds of this package are learned: what they record of success is no truth."""


def judge_command(path: Path, overrides: Sequence[str], config_dir: str | None = None) -> int:
    """Judge a run and print the audit; returns the exit code."""
    config = compose_config("judge", overrides, config_dir)
    run = Run(path)
    if config.get("judge") is None:
        raise ConfigError(f"no judge is chosen; choose one by judge=…: {', '.join(options_of('judge', config_dir))}")
    there = sorted({run.rollout(each).world for each in run.requested})
    worlds = _chosen("worlds", config.worlds, there) or there
    truths = _chosen("truth", config.truth, there) or _simulators(run, there)
    name = str(config.name or config.judge.get("name") or "judge")
    judge = build_judge(config.judge)
    try:
        verdicts = judge_run(run, judge, name, worlds, plain(config.judge), _watched)
    finally:
        judge.close()
    outcomes = read_outcomes(run)
    found = audits(outcomes, verdicts, truths, _CONFIDENCE)
    write_json(verdicts.folder / "audit.json", {"truth": truths, "confidence": _CONFIDENCE, "audits": found})
    print_audits(found, run.path.name, _CONFIDENCE, Console())
    if not found:
        none = sum(verdict.success is None for verdict in verdicts.values())
        print(f"{len(verdicts)} episodes judged, {none} without a verdict; the truth is known of none of them")
    print(f"verdicts: {verdicts.folder}; `simeval score {path} --judge {name}` scores by them")
    return 0


def _chosen(setting: str, given: Any, there: Sequence[str]) -> list[str]:
    chosen = [] if given is None else list(names(setting, plain(given)))
    for each in chosen:
        if each not in there:
            raise unknown(f"world of the run in {setting}", each, there)
    return chosen


def _simulators(run: Run, there: Sequence[str]) -> list[str]:
    config = recorded_config(run)
    learned = {name for name, entry in world_configs(config).items() if _is_model(entry)} if has_worlds(config) else ()
    return [world for world in there if world not in learned]


def _is_model(entry: DictConfig) -> bool:
    return str(entry.get("_target_")).startswith(_MODELS)


def _watched(ids: Sequence[str]) -> Iterator[str]:
    return iter(
        track(
            ids,
            description="judging",
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
            transient=True,
        )
    )
