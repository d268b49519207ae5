"""The short way: evaluate policies in a World, in one call."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simeval import folder
from simeval.episode import Episode
from simeval.matching import declarations, fit
from simeval.policy import Policy
from simeval.protocols import MonteCarlo, Paired, Setting
from simeval.rollout import Engine
from simeval.store import MemoryStore, RunStore, Store
from simeval.world import World


def evaluate(
    world: World,
    policies: Policy | Mapping[str, Policy],
    *,
    episodes: int,
    tasks: Sequence[str] | None = None,
    seed: int = 0,
    horizon: int | None = None,
    path: str | Path | None = None,
) -> list[Episode]:
    """Run ``episodes`` of each task with each policy, all policies on the same starts and noise.

    ``policies`` is one policy, named ``"policy"``, or several by name. With ``path`` the run is recorded in a folder
    (see ``Run``, ``simeval score`` and ``simeval report``); a folder that holds a run of the same World and policies is
    gone on with, so that calling again with more episodes runs only those that are missing. Without it, episodes are
    kept in memory.
    """
    named = {"policy": policies} if isinstance(policies, Policy) else dict(policies)
    design = Paired if len(named) > 1 else MonteCarlo
    study = design(episodes=episodes, tasks=tasks, horizon=horizon)
    setting = Setting({world.name: world}, {world.name: list(named)}, seed)
    bound = {name: fit(policy, world.spec) for name, policy in named.items()}
    size = study.size(setting)
    settings = {"seed": seed, "horizon": horizon}
    store = MemoryStore() if path is None else _store(Path(path), world, bound, settings, size)
    with Engine({world.name: world}, {world.name: bound}, store) as engine:
        found = engine.run(study.protocol(setting))
        if path is not None:
            folder.end(Path(path))
    return found


def _store(
    path: Path, world: World, policies: Mapping[str, Policy], config: Mapping[str, Any], size: int | None
) -> Store:
    manifest = folder.Manifest(
        config=config,
        worlds={world.name: world.fingerprint},
        policies={world.name: {name: policy.fingerprint for name, policy in policies.items()}},
        conventions=declarations({world.name: world}, {world.name: policies}),
        size=size,
    )
    if (path / "run.json").exists():
        lock, _ = folder.resume(path, manifest)
    else:
        lock = folder.create(path, manifest)
    return RunStore(path, lock=lock)
