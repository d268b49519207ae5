"""Exact, paired evaluation of robot policies in simulators and learned world models.

A ``World`` (a simulator or a learned model) can be reset, stepped, snapshotted, restored and forked with keyed noise; a
``Policy`` acts in it; a protocol asks for ``Rollout``\\ s; the engine runs them; the HDF5 trace is the record.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simeval.conventions import Conventions
    from simeval.episode import Episode
    from simeval.errors import SimevalError
    from simeval.evaluation import evaluate
    from simeval.host import HostedWorld
    from simeval.noise import Key, StepKey, Stream
    from simeval.policy import Memory, Policy, PolicyStep
    from simeval.protocols import MonteCarlo, Paired, Setting, Study, together
    from simeval.reader import Run
    from simeval.rollout import Engine, run
    from simeval.schedule import Protocol, parallel
    from simeval.simulator import Simulator, SimulatorStep, SimulatorWorld
    from simeval.store import MemoryStore, RunStore, Store
    from simeval.types import Perturbation, Rollout, Snapshot, SnapshotRef, Start, TimeStep, WorldSpec
    from simeval.vector import as_env, as_vector_env
    from simeval.world import World
    from simeval.wrappers import Delegate

_HOME = {
    "simeval.conventions": "Conventions",
    "simeval.episode": "Episode",
    "simeval.errors": "SimevalError",
    "simeval.evaluation": "evaluate",
    "simeval.host": "HostedWorld",
    "simeval.noise": "Key StepKey Stream",
    "simeval.policy": "Memory Policy PolicyStep",
    "simeval.protocols": "MonteCarlo Paired Setting Study together",
    "simeval.reader": "Run",
    "simeval.rollout": "Engine run",
    "simeval.schedule": "Protocol parallel",
    "simeval.simulator": "Simulator SimulatorStep SimulatorWorld",
    "simeval.store": "MemoryStore RunStore Store",
    "simeval.types": "Perturbation Rollout Snapshot SnapshotRef Start TimeStep WorldSpec",
    "simeval.vector": "as_env as_vector_env",
    "simeval.world": "World",
    "simeval.wrappers": "Delegate",
}
"""Module -> the public names that it defines. They load when they are used, so that a bare worker stays light."""

__all__ = [
    "Conventions",
    "Delegate",
    "Engine",
    "Episode",
    "HostedWorld",
    "Key",
    "Memory",
    "MemoryStore",
    "MonteCarlo",
    "Paired",
    "Perturbation",
    "Policy",
    "PolicyStep",
    "Protocol",
    "Rollout",
    "Run",
    "RunStore",
    "Setting",
    "SimevalError",
    "Simulator",
    "SimulatorStep",
    "SimulatorWorld",
    "Snapshot",
    "SnapshotRef",
    "Start",
    "StepKey",
    "Store",
    "Stream",
    "Study",
    "TimeStep",
    "World",
    "WorldSpec",
    "as_env",
    "as_vector_env",
    "evaluate",
    "parallel",
    "run",
    "together",
]


def __getattr__(name: str) -> Any:
    for module, defined in _HOME.items():
        if name in defined.split():
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
