"""A World and a policy in modules beside ``--config-dir``: run, hosted, gone on with and reported from anywhere."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from simeval import Run
from simeval.cli.build import locate_hosts, rebuild_world, recorded_config, world_configs
from simeval.cli.compose import own_modules
from simeval.errors import ConfigError
from simeval.testing import ToySimulator

CONFIG = "name: mine\n_target_: ballgame.Balls\nnum_slots: 2\nexpert: null\n"


def simeval(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("simeval")), *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("own")
    (home / "ballgame.py").write_text(
        "from simeval.testing import ToySimulator\n\n\nclass Balls(ToySimulator):\n    pass\n"
    )
    (home / "mine" / "world").mkdir(parents=True)
    (home / "mine" / "world" / "ballgame.yaml").write_text(CONFIG)
    settings = [
        "world=ballgame",
        "policy=uniform",
        "protocol.episodes=1",
        "protocol.horizon=5",
        "report.videos=0",
        "run.dir=run",
    ]
    made = simeval("run", *settings, "--config-dir", "mine", "world.host.processes=1", cwd=home)
    assert made.returncode == 0, made.stderr
    return home


def test_a_run_of_a_world_of_ones_own_is_gone_on_with(home: Path) -> None:
    more = ["run.dir=run", "run.resume=true", "protocol.episodes=2"]
    went_on = simeval("run", *more, "--config-dir", "mine", cwd=home)
    assert went_on.returncode == 0, went_on.stderr
    assert len(Run(home / "run")) == 2 * len(ToySimulator().tasks)


def test_without_its_folder_one_line_says_what_to_add(home: Path) -> None:
    lost = simeval("run", "run.dir=run", "run.resume=true", cwd=home)
    assert lost.returncode == 2
    (line,) = lost.stderr.splitlines()
    assert "there is no 'ballgame.Balls' to import" in line
    assert "--config-dir" in line


def test_a_report_finds_the_module_beside_the_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (entry,) = world_configs(recorded_config(Run(home / "run"))).values()
    with pytest.raises(ConfigError, match=r"no 'ballgame.Balls' to import; .* --config-dir"):
        rebuild_world(entry)
    monkeypatch.setattr(sys, "path", [*sys.path])
    own_modules(str(home / "mine"))
    rebuild_world(entry).close()


def test_an_export_finds_the_module_beside_the_folder(home: Path) -> None:
    arguments = ["export", "run", "--to", "minari", "--output", "own/balls-v0", "--config-dir", "mine"]
    command = [str(Path(sys.executable).with_name("simeval")), *arguments]
    environment = {**os.environ, "MINARI_DATASETS_PATH": str(home / "datasets")}
    written = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True)
    assert written.returncode == 0, written.stderr
    assert (home / "datasets" / "own").exists()


def test_a_relative_interpreter_is_recorded_as_an_absolute_one() -> None:
    host = {"python": "envs/bin/python"}
    config = OmegaConf.create({"world": {"name": "a", "host": host}, "policy": {"name": "b", "host": {"python": "py"}}})
    locate_hosts(config)
    assert config.world.host.python == str(Path("envs/bin/python").absolute())
    assert config.policy.host.python == "py"


def test_a_folder_that_holds_a_clone_does_not_hide_the_package(tmp_path: Path) -> None:
    (tmp_path / "simeval").mkdir()
    command = [sys.executable, "-c", "import simeval; print(simeval.Run.__name__)"]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert told.stdout == "Run\n", told.stderr
