"""Commands that only read what was recorded: ``score``, ``report``, ``compare``, ``export``."""

import sys
from collections.abc import Sequence
from pathlib import Path

from omegaconf import OmegaConf
from rich.console import Console
from rich.progress import track

from simeval.audit import audit_bulk
from simeval.cli.build import has_worlds, rebuild_world, recorded_config, world_configs
from simeval.cli.compose import own_modules, plain
from simeval.cli.present import make_videos
from simeval.compare import compare
from simeval.errors import ConfigError
from simeval.export import export
from simeval.reader import Run
from simeval.report import report
from simeval.score import score
from simeval.settings import whole
from simeval.shard_reader import open_shard
from simeval.tables import print_comparison, print_table
from simeval.world import World


def score_command(path: Path, audit: bool = False, judge: str | None = None) -> int:
    """Recompute ``scores.json`` and print the table; with ``audit``, compare with its digest all that was recorded.

    By the verdicts of a ``judge``, where one is named.
    """
    run = Run(path)
    scores = score(run, judge=judge)
    if audit:
        _audit(run)
    print_table(scores, Console())
    return 0


def _audit(run: Run) -> None:
    """Compare with its digest what scoring leaves out; ``TraceError`` names the episode that was altered."""
    shards = track(
        sorted((run.path / "traces").glob("*.h5")),
        description="auditing",
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
        transient=True,
    )
    episodes, bulky, without = 0, 0, 0
    for path in shards:
        with open_shard(path, run.run_id) as shard:
            bulky += audit_bulk(shard)
            episodes += len(shard.ids)
            without += sum(not content for content in shard.contents())
    print(f"audited: {episodes} episodes, {bulky} image arrays and checkpoints among them, are as they were recorded")
    if without:
        print(f"note: {without} episodes were recorded without digests: of these, outcomes alone were checked")


def report_command(
    path: Path, videos: int, audit: bool = False, config_dir: str | None = None, judge: str | None = None
) -> int:
    """Write ``report.html`` anew, with ``videos`` more films per task, policy and outcome; the rest: as for scores.

    ``config_dir`` is the one that the run was made with: its World may be a module beside it.
    """
    whole("--videos", videos, 0)
    if config_dir is not None:
        own_modules(config_dir)
    run = Run(path)
    if audit:
        _audit(run)
    if videos:
        for note in make_videos(run, videos):
            print(f"note: {note}")
    elif not any((run.path / "videos").glob("*.mp4")):
        print(f"note: no videos; film some with `simeval report {path} --videos 1`")
    print(f"report: {report(run, judge=judge)}")
    return 0


def compare_command(path_a: Path, path_b: Path, policy_a: str | None, policy_b: str | None) -> int:
    """Print what two runs say of each other."""
    print_comparison(compare(Run(path_a), Run(path_b), policy_a, policy_b), Console())
    return 0


def export_command(
    path: Path, to: str, output: str | None, overrides: Sequence[str] = (), config_dir: str | None = None
) -> int:
    """Write a run in another format, with the format's own settings, and print where; ``config_dir`` as in a report."""
    if config_dir is not None:
        own_modules(config_dir)
    for override in overrides:
        if "=" not in override:
            raise ConfigError(f"{override}: settings are SETTING=VALUE")
    settings = plain(OmegaConf.from_dotlist(list(overrides)))
    run = Run(path)
    config = recorded_config(run)
    worlds: dict[str, World] = {}
    try:
        for name, entry in world_configs(config).items() if has_worlds(config) else ():
            worlds[name] = rebuild_world(entry)
        written = export(run, to, output, {name: world.spec for name, world in worlds.items()}, settings)
    finally:
        for world in worlds.values():
            world.close()
    for folder in written:
        print(f"wrote {folder}")
    return 0
