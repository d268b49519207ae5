"""Exact, paired evaluation of robot policies in simulators and learned world models.

A ``World`` (a simulator or a learned model) can be reset, stepped, snapshotted, restored and forked with keyed noise; a
``Policy`` acts in it; a protocol asks for ``Rollout``\\ s; the engine runs them; the HDF5 trace is the record.
"""

from simeval.episode import Episode
from simeval.errors import SimevalError
from simeval.evaluation import evaluate
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

__all__ = [
    "Delegate",
    "Engine",
    "Episode",
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
