"""The property the harness is known for, on real simulators and through the command line."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simeval import Run
from simeval.cli import main

EXPERIMENT = [
    "policy=expert,noisy_expert",
    "protocol=paired",
    "protocol.episodes=4",
    "protocol.snapshot_every=20",
    "report.videos=0",
]
WORLDS = {
    "tabletop": ["world=tabletop", "world.task=[push,stow]"],
    "metaworld": ["world=metaworld", "world.task=[push-v3,drawer-close-v3]"],
}


def assert_identical(one: Run, other: Run) -> None:
    assert set(one.requested) == set(other.requested) == {episode.id for episode in one}
    for episode in one:
        again = other[episode.id]
        assert replace(episode.ending, wall_s=0) == replace(again.ending, wall_s=0)
        assert sorted(episode.source.paths()) == sorted(again.source.paths())
        for path in episode.source.paths():
            np.testing.assert_array_equal(episode.source.read(path), again.source.read(path), err_msg=path)
        for step in episode.source.checkpoint_steps():
            assert episode.source.checkpoint(step).to_bytes() == again.source.checkpoint(step).to_bytes()


@pytest.mark.parametrize("world", [pytest.param(name, marks=pytest.mark.slow) for name in ("tabletop", "metaworld")])
def test_one_three_or_sixteen_slots_interrupted_or_not_give_the_same_traces(world: str, tmp_path: Path) -> None:
    arguments = ["run", *WORLDS[world], *EXPERIMENT]
    for slots in (1, 3, 16):
        assert main([*arguments, f"world.num_slots={slots}", f"run.dir={tmp_path}/{slots}"]) == 0
    reference = Run(tmp_path / "1")
    assert len(reference) == 16
    assert_identical(reference, Run(tmp_path / "3"))
    assert_identical(reference, Run(tmp_path / "16"))

    cut = tmp_path / "cut"
    command = [sys.executable, "-m", "simeval", *arguments, "world.num_slots=1", f"run.dir={cut}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not (cut / "run.json").exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.01)
    time.sleep(0.6)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert len(Run(cut)) < len(reference), "the run had ended before it was interrupted"
    assert main(["run", f"run.dir={cut}", "run.resume=true", "world.num_slots=5"]) == 0
    assert_identical(reference, Run(cut))
