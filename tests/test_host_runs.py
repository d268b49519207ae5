"""Hosts from the command line: settings, runs and run folders of others."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

from simeval import HostedWorld, Run
from simeval.cli import main
from simeval.cli.build import build_world, rebuild_world
from simeval.cli.compose import options_of
from simeval.differences import differences
from simeval.errors import ConfigError
from simeval.testing import ToySimulator

ROOT = Path(__file__).resolve().parent.parent
TOY = {"name": "toy", "_target_": "simeval.testing.ToySimulator", "num_slots": 3, "expert": None}
RUN = ["run", "world.task=reach", "world.num_slots=4", "report.videos=0"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def hosted(**host: Any) -> dict[str, Any]:
    return {**TOY, "host": host}


def test_every_world_can_be_hosted() -> None:
    for name in options_of("world"):
        host = OmegaConf.load(ROOT / "configs" / "world" / f"{name}.yaml").host
        assert set(host) == {"processes", "python", "deadline"}, name


def test_a_worlds_host_says_where_it_is_built() -> None:
    assert isinstance(build_world(TOY), ToySimulator)
    assert isinstance(build_world(hosted(processes=0)), ToySimulator)
    world = build_world(hosted(processes=2), num_slots=5)
    try:
        assert isinstance(world, HostedWorld)
        assert (world.num_slots, len(world.pids)) == (5, 2)
    finally:
        world.close()


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ({"proceses": 2}, "unknown setting of host 'proceses'; did you mean processes"),
        ({"processes": -1}, "host.processes"),
        ({"processes": 1.5}, "host.processes"),
        ({"deadline": 0}, "host.deadline"),
        ({"python": "/no/such/python"}, "host.python=/no/such/python: there is no such program"),
        ({"python": 3}, "host.python is the path"),
    ],
)
def test_a_host_that_cannot_be_is_refused(host: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        build_world(hosted(**host))


def test_an_interpreter_that_only_a_run_folder_names_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    marker, python = Path("started").absolute(), Path("python").absolute()
    python.write_text(f'#!/bin/sh\ntouch {marker}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    entry = OmegaConf.create(hosted(python=str(python), processes=2))
    with pytest.raises(
        ConfigError,
        match=f"not built again.*only the run folder says.*any program.*set SIMEVAL_TRUSTED_PYTHON={python} in",
    ):
        rebuild_world(entry)
    assert not marker.exists()
    monkeypatch.setenv("SIMEVAL_TRUSTED_PYTHON", f"/some/other:{python}")
    rebuild_world(entry, num_slots=1).close()
    assert marker.exists()
    assert isinstance(rebuild_world(OmegaConf.create(hosted(processes=2))), ToySimulator)


def test_a_run_goes_on_in_processes_and_is_the_run_that_it_would_have_been() -> None:
    assert main([*RUN, "run.dir=plain", "protocol.episodes=4"]) == 0
    assert main([*RUN, "run.dir=mixed", "protocol.episodes=2", "world.host.processes=2"]) == 0
    assert main(["run", "run.dir=mixed", "run.resume=true", "protocol.episodes=4", "world.host.processes=0"]) == 0
    plain, mixed = Run(Path("plain")), Run(Path("mixed"))
    assert {episode.id for episode in plain} == {episode.id for episode in mixed}
    for episode in plain:
        for path in episode.source.paths():
            np.testing.assert_array_equal(episode.source.read(path), mixed[episode.id].source.read(path), err_msg=path)
    told = {item["what"] for item in differences(plain.info, Run(Path("mixed")).info)}
    assert not {what for what in told if "host" in what}


def test_only_the_host_tells_two_manifests_apart_and_it_is_no_difference() -> None:
    one, two = (
        {"config": {"world": hosted(processes=count, python=python)}} for count, python in ((0, None), (2, "p"))
    )
    assert differences(one, two) == []
    assert differences(one, {"config": {"world": {**hosted(processes=0, python=None), "image_size": 3}}})


@pytest.mark.slow
@pytest.mark.parametrize("world", [["metaworld", "world.task=reach-v3"], ["tabletop", "world.task=push"]])
def test_hosted_simulators_conform(world: list[str]) -> None:
    assert main(["check", f"world={world[0]}", *world[1:], "world.host.processes=2", "--steps", "40"]) == 0
