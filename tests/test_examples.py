"""What the documentation shows runs as shown."""

import re
import shlex
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest
import yaml

from simeval import Run

ROOT = Path(__file__).parents[1]


def blocks(path: str, language: str = "python") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / path).read_text(), flags=re.DOTALL)


def commands(path: str, word: str) -> list[str]:
    """The indented ``simeval`` commands of a page that contain ``word``, without their comments."""
    lines = (ROOT / path).read_text().splitlines()
    return [line.partition("  #")[0].strip() for line in lines if line.startswith("    simeval ") and word in line]


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_the_example_runs(path: Path, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(path)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert not list(tmp_path.iterdir())


def test_the_readmes_first_python_runs(tmp_path: Path) -> None:
    code = blocks("README.md")[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 12
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(", 231) (") == 4
    assert re.search(r"reach +expert +1\.0", done.stdout)
    assert len(Run(tmp_path / "runs" / "first")) == 40


def test_the_documented_world_conforms(tmp_path: Path) -> None:
    code = blocks("docs/worlds.md")[0] + (
        "\n\nif __name__ == '__main__':\n"
        "    from simeval.testing import assert_conforms, check_world\n"
        "    assert_conforms(check_world(CartWorld))\n"
    )
    (tmp_path / "cart.py").write_text(code)
    done = subprocess.run([sys.executable, "cart.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_documented_policy_conforms(tmp_path: Path) -> None:
    code = blocks("docs/policies.md")[0] + (
        "\n\nif __name__ == '__main__':\n"
        "    from functools import partial\n"
        "    from envs.tabletop import Tabletop\n"
        "    from simeval.testing import assert_conforms, check_policy\n"
        "    assert_conforms(check_policy(partial(Drift, 5), lambda slots: Tabletop('reach', num_slots=slots)))\n"
    )
    (tmp_path / "drift.py").write_text(code)
    done = subprocess.run([sys.executable, "drift.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_documented_world_and_policy_run_together_from_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "cart.py").write_text(blocks("docs/worlds.md")[0])
    (tmp_path / "drift.py").write_text(blocks("docs/policies.md")[0])
    for text in (*blocks("docs/worlds.md", "yaml"), *blocks("docs/policies.md", "yaml")):
        path = tmp_path / text.removeprefix("# ").split(";")[0].split()[0]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (own,) = blocks("README.md", "yaml")
    assert yaml.safe_load(own) == yaml.safe_load((tmp_path / "my_configs/world/cart.yaml").read_text())
    shown = commands("docs/policies.md", "my_configs")
    assert set(commands("README.md", "my_configs")) <= {
        *commands("docs/worlds.md", "my_configs"),
        *(command.replace(" run.dir=runs/x", "") for command in shown),
    }
    for command in shown:
        few = [] if " check " in command or "resume" in command else ["protocol.episodes=2"]
        few += ["world.task=reach", "protocol.horizon=5"] if "tabletop" in command else []
        arguments = [str(Path(sys.executable).with_name("simeval")), *shlex.split(command)[1:], *few]
        done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    run = Run(tmp_path / "runs" / "x")
    assert len(run) == 40
    assert list((run.path / "videos").glob("*.mp4")), "render() makes the report's videos"


def test_the_documents_agree_on_which_worlds_have_an_expert() -> None:
    configured = {
        path.name.removesuffix(".yaml")
        for path in resources.files("configs").joinpath("world").iterdir()
        if yaml.safe_load(path.read_text(encoding="utf-8")).get("expert")
    }
    for page in ("README.md", "docs/worlds.md", "docs/policies.md"):
        (told,) = re.findall(r"([\w, ]+) have one\b", (ROOT / page).read_text().replace("\n", " "))
        assert set(re.findall(r"\w+", told)) - {"and"} == configured, page


def test_the_documented_protocol_runs() -> None:
    code = blocks("docs/protocols.md")[0].replace("range(50)", "range(2)")
    setup = (
        "from envs.tabletop import Tabletop\nfrom policies.tabletop import TabletopExpert\n"
        "world, policy = Tabletop('push', num_slots=4), TabletopExpert()\n"
    )
    check = (
        "\nfor factual, twin in pairs:\n"
        "    step = twin.rollout.branch_step\n"
        "    assert (twin.action[:3] != factual.action[step : step + 3]).any(), 'the twin is its parent'\n"
        "world.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", setup + code + check], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
