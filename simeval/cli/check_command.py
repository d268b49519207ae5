"""``simeval check``: the conformance suite on any configured World or Policy, in a table."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import resources
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from simeval.axes import PerturbationAxis
from simeval.cli.build import (
    build_policy,
    build_world,
    perturbation_axes,
    policy_configs,
    resolved,
    world_configs,
)
from simeval.cli.compose import AXES, compose_config, options_of, plain
from simeval.conventions import in_words
from simeval.matching import fit, matches
from simeval.noise import Key
from simeval.policy import Policy
from simeval.settings import whole
from simeval.testing import Check, certificate, check_policy, check_world
from simeval.testing.certificate import CERTIFYING
from simeval.testing.world_suite import default_tasks
from simeval.types import Perturbation
from simeval.world import World


def check_command(
    overrides: Sequence[str], config_dir: str | None = None, tasks: str | None = None, steps: int = 200
) -> int:
    """Check what was named: the World, or with ``policy=…`` the policy in that World. 0 if all holds, 1 if not.

    A World is checked on ``tasks`` (names with commas between them, or ``all``; by default its first, middle and last),
    its forks followed for ``steps`` steps, and what was found of its forks is printed as a certificate. The axes of
    perturbation that it applies itself are tried at their highest severity: those of ``perturbation=…``, or all.
    """
    whole("--steps", steps)
    config = compose_config("run", overrides, config_dir)
    policies_named = any(override.lstrip("+").startswith(("policy=", "policies", "policy@")) for override in overrides)
    failed = 0
    for name, entry in world_configs(config).items():
        arguments = resolved(entry)
        make_world = partial(_world_of, arguments)
        if policies_named:
            for policy_name, policy_entry in policy_configs(config).items():
                make_policy = partial(_policy_of, policy_entry, entry, policy_name)
                _show_conventions(policy_name, name, make_policy, make_world)
                chosen = None if tasks is None else _title_and_tasks(name, make_world, tasks)[1]
                with _progress() as progress:
                    checks = check_policy(make_policy, make_world, tasks=chosen, progress=progress)
                failed += _show(f"policy {policy_name} in world {name}", checks)
        else:
            expert = None if entry.get("expert") is None else partial(build_policy, entry["expert"], entry, "expert")
            title, chosen = _title_and_tasks(name, make_world, tasks)
            drawn = _drawn(config.get(AXES))
            with _progress() as progress:
                checks = check_world(
                    make_world, tasks=chosen, steps=steps, policy=expert, perturbations=drawn, progress=progress
                )
            failed += _show(title, checks)
            broken = tuple(check for check in checks if not check.passed and check.name in CERTIFYING)
            if broken or not checks[0].passed:
                print("no certificate: forks are not exact")
            else:
                print(certificate(make_world, chosen, steps))
    return 1 if failed else 0


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Shows on a terminal what is being checked."""
    console = Console(stderr=True)
    if not sys.stderr.isatty():
        yield lambda name: None
        return
    with console.status("building the world") as status:
        yield lambda name: status.update(escape(name))


def _drawn(chosen: DictConfig | None) -> list[Perturbation]:
    """A perturbation of each axis that was chosen, or that ships."""
    files = [resources.files("configs").joinpath(AXES, f"{name}.yaml") for name in options_of(AXES)]
    entries = [chosen] if chosen else [OmegaConf.create(file.read_text(encoding="utf-8")) for file in files]
    drawn = []
    for entry in entries:
        if not chosen and "_target_" not in entry:  # a preset, which repeats the others
            continue
        for name, settings in perturbation_axes(plain(entry)).items():
            axis: PerturbationAxis = instantiate(settings)
            drawn.append(axis.draw(axis.severities[-1], Key(0).stream("check").event(name)))
    return drawn


def _world_of(entry: Any, num_slots: int) -> World:
    return build_world(entry, num_slots=num_slots)


def _policy_of(policy_entry: DictConfig, world_entry: DictConfig, name: str) -> Policy:
    return build_policy(policy_entry, world_entry, name)


def _show_conventions(
    policy_name: str, world_name: str, make_policy: Callable[[], Policy], make_world: Callable[..., World]
) -> None:
    """What both sides declare, in a table; ``ConfigError`` where it differs."""
    world, policy = make_world(1), make_policy()
    try:
        bound = policy.bind(world.spec)
        rows = matches(bound, world.spec)
        read = ", ".join(bound.observation_keys) or "nothing"
        table = Table(
            title=escape(f"conventions: {policy_name} in {world_name} (it reads {read})"), title_justify="left"
        )
        for column in ("", "convention", f"policy {policy_name}", f"world {world_name}", "declared"):
            table.add_column(escape(column), overflow="fold")
        for row in rows:
            table.add_row(
                _MARKS[row.verdict], row.name, *map(escape, (in_words(row.policy), in_words(row.world))), row.verdict
            )
        Console().print(table)
        fit(policy, world.spec)
    finally:
        policy.close()
        world.close()


_MARKS = {"by both": "[green]✓[/green]", "differs": "[red]✗[/red]", "by one": "–", "not declared": ""}


def _title_and_tasks(name: str, make_world: Callable[..., World], tasks: str | None) -> tuple[str, tuple[str, ...]]:
    world = make_world(1)
    try:
        if tasks is None:
            chosen = default_tasks(world.tasks)
        else:
            chosen = world.tasks if tasks == "all" else tuple(tasks.split(","))
        for task in chosen:
            world.check_task(task)
        title = f"world {name}: {len(chosen)} of {len(world.tasks)} tasks ({', '.join(chosen)}), {world.fingerprint}"
        return title, chosen
    finally:
        world.close()


def _show(title: str, checks: Sequence[Check]) -> int:
    table = Table(title=escape(title), title_justify="left", show_lines=False)
    table.add_column("")
    table.add_column("check", overflow="fold")
    table.add_column("detail", overflow="fold")
    table.add_column("s", justify="right")
    for check in checks:
        mark = "[green]✓[/green]" if check.passed else "[red]✗[/red]" if check.tried else "–"
        table.add_row(mark, escape(check.name), escape(check.detail), f"{check.seconds:.1f}")
    Console().print(table)
    failed = [check for check in checks if not check.passed]
    untried = sum(not check.tried for check in failed)
    print(
        f"{len(checks) - len(failed)} of {len(checks)} checks hold" + (f", {untried} were not run" if untried else "")
    )
    return len(failed)
