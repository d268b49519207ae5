"""A certificate says of which tasks forks are exact, and what they cost."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
from test_conformance import ForgetsInSnapshot, RemembersEpisodes, Toy

from simeval.cli import main
from simeval.errors import SnapshotError
from simeval.testing import ToySimulator, certify
from simeval.testing.certificate import CERTIFYING, Cost
from simeval.testing.world_suite import WORLD_CHECKS

TASKS = ToySimulator(1).tasks


def test_forks_of_an_exact_world_are_certified_for_every_task_with_their_cost() -> None:
    told: list[str] = []
    certificate = certify(ToySimulator, steps=40, progress=told.append)
    assert certificate.exact
    assert certificate.tasks == TASKS == tuple(told)
    assert certificate.costs.keys() == set(TASKS)
    for cost in certificate.costs.values():
        assert 0 < cost.snapshot_us < cost.fork_us
        assert cost.size == len(_snapshot_after_fifty_steps(certificate.tasks[0]))
    assert f"{len(TASKS)} of {len(TASKS)} tasks are exact over 40 steps, by state" in str(certificate)


def _snapshot_after_fifty_steps(task: str) -> bytes:
    from simeval.testing.checks import random_actions, record

    world = ToySimulator(1)
    record(world, 0, world.start(task, 0), random_actions(world.action_space, 50, "cost", task))
    return world.snapshot([0])[0].to_bytes()


@pytest.mark.parametrize("broken", [ForgetsInSnapshot, RemembersEpisodes])
def test_a_world_whose_forks_are_not_exact_gets_no_certificate(broken: type[Toy]) -> None:
    certificate = certify(broken, tasks=TASKS[:1], steps=20)
    assert not certificate.exact
    (checks,) = certificate.broken.values()
    assert {check.name for check in checks} <= set(CERTIFYING) <= set(WORLD_CHECKS)
    assert "0 of 1 tasks are exact" in str(certificate)


@pytest.fixture(scope="module")
def certificates() -> Any:
    path = Path(__file__).parents[1] / "benchmarks" / "certificates.py"
    spec = importlib.util.spec_from_file_location("certificates", path)
    assert spec is not None
    assert spec.loader is not None
    made = sys.modules["certificates"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_a_certificate_that_was_noted_down_is_found_again_by_its_world_and_number_of_steps(
    certificates: Any, tmp_path: Path
) -> None:
    made = certify(RemembersEpisodes, tasks=TASKS[:1], steps=20)
    certificates.Parts(tmp_path / "parts").add(("world=toy",), 20, made)
    again = certificates.Parts(tmp_path / "parts")
    assert again.find(("world=toy",), 20) == made
    assert again.find(("world=toy",), 30) is None
    assert again.find(("world=other",), 20) is None
    assert certificates.Parts(None).find(("world=toy",), 20) is None


def test_costs_measured_again_change_two_figures_of_their_row_and_nothing_else(
    certificates: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs = tmp_path / "worlds.md"
    shipped = (Path(__file__).parents[1] / "docs" / "worlds.md").read_text()
    docs.write_text(shipped)
    monkeypatch.setattr(certificates, "costs_of", lambda suite: iter([Cost(700.0, 800.0, 5_040), Cost(1.0, 2.0, 60)]))
    assert certificates.measure_again(["arm"], docs) == {"arm": 751.5}
    (before,), (after,) = (
        [line for line in t.splitlines() if line.startswith("| arm | 1 of")] for t in (shipped, docs.read_text())
    )
    assert [cell for cell in after.split(" | ") if cell not in before.split(" | ")] == ["752 µs", "5.0 kB"]
    assert docs.read_text().replace(after, before) == shipped


@pytest.mark.slow
def test_check_prints_the_certificate_of_the_tasks_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "world=tabletop", "--tasks", "reach,push", "--steps", "30"]) == 0
    assert "forks of 2 of 2 tasks are exact over 30 steps, by state" in capsys.readouterr().out
    assert main(["check", "world=tabletop", "--tasks", "reech"]) == 2
    assert "reach" in capsys.readouterr().err


def test_a_snapshot_of_a_task_that_a_world_does_not_have_is_refused_by_name() -> None:
    pytest.importorskip("metaworld")
    from envs.metaworld import MetaWorld
    from simeval.testing.checks import world_stream

    with_reach, with_push = MetaWorld("reach-v3"), MetaWorld("push-v3")
    start = with_reach.start("reach-v3", 0)
    with_reach.reset([0], [start], [world_stream(start).key(0)])
    with pytest.raises(SnapshotError, match="reach-v3"):
        with_push.restore([0], with_reach.snapshot([0]))
    with_reach.close()
    with_push.close()
