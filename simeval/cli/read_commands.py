"""Commands that only read what was recorded: ``score``, ``report``, ``compare``, ``export``."""

from pathlib import Path

from omegaconf import OmegaConf
from rich.console import Console

from simeval.cli.build import has_worlds, rebuild_world, world_configs
from simeval.cli.present import make_videos
from simeval.compare import compare
from simeval.export import export
from simeval.reader import Run
from simeval.report import report
from simeval.score import score
from simeval.tables import print_comparison, print_table
from simeval.world import World


def score_command(path: Path) -> int:
    """Recompute ``scores.json`` and print the table."""
    print_table(score(Run(path)), Console())
    return 0


def report_command(path: Path, videos: int) -> int:
    """Write ``report.html`` anew, with ``videos`` more films per task, policy and outcome if asked."""
    run = Run(path)
    if videos:
        for note in make_videos(run, videos):
            print(f"note: {note}")
    print(f"report: {report(run)}")
    return 0


def compare_command(path_a: Path, path_b: Path, policy_a: str | None, policy_b: str | None) -> int:
    """Print what two runs say of each other."""
    print_comparison(compare(Run(path_a), Run(path_b), policy_a, policy_b), Console())
    return 0


def export_command(path: Path, to: str, output: str | None) -> int:
    """Write a run in another format and print where."""
    run = Run(path)
    config = OmegaConf.create(run.config)
    worlds: dict[str, World] = {}
    try:
        for name, entry in world_configs(config).items() if has_worlds(config) else ():
            worlds[name] = rebuild_world(entry)
        written = export(run, to, output, {name: world.spec for name, world in worlds.items()})
    finally:
        for world in worlds.values():
            world.close()
    for folder in written:
        print(f"wrote {folder}")
    return 0
