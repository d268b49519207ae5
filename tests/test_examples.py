"""What the documentation shows runs as shown."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from simeval import Run

ROOT = Path(__file__).parents[1]


def blocks(path: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / path).read_text(), flags=re.DOTALL)


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
