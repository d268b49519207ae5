"""The policies that ship do what is said of them: they load, fit their World, and mostly succeed."""

from pathlib import Path

import pytest

from simeval.cli import main
from simeval.reader import Run


@pytest.mark.parametrize(
    ("settings", "tasks", "least"),
    [
        (["policy=vla", "world.cameras=[front,wrist]"], "[close_drawer,press_button]", 4),
        (["world=metaworld", "policy=diffusion"], "[drawer-close-v3,push-v3]", 5),
    ],
)
def test_a_shipped_policy_succeeds_on_starts_that_it_has_not_seen(
    settings: list[str], tasks: str, least: int, tmp_path: Path
) -> None:
    more = ["protocol.episodes=3", "seed=5000", "record.images=none", "report.videos=0", f"run.dir={tmp_path / 'run'}"]
    assert main(["run", *settings, f"world.task={tasks}", *more]) == 0
    assert sum(episode.succeeded for episode in Run(tmp_path / "run")) >= least
