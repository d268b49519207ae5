"""The perturbations in force in one simulator whose ``MjModel`` is its own and is captured (see ``envs.capture``)."""

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import mujoco
import numpy as np

from envs.perturbed.appearance import pixels, recolour, retexture
from envs.perturbed.camera import move_cameras
from envs.perturbed.changes import Change, changes_of
from envs.perturbed.dynamics import change_dynamics
from envs.perturbed.lighting import light
from envs.perturbed.parts import Parts
from envs.perturbed.placement import Standing, movable, move_things
from simeval.errors import UnsupportedError
from simeval.noise import Key
from simeval.simulator import Simulator, SimulatorStep
from simeval.types import Perturbation, Start, content_hash

LOOKS = frozenset({"camera", "lighting", "appearance"})
"""The axes that change how things look and nothing else."""
AXES = LOOKS | {"initial_state.robot", "initial_state.layout", "dynamics"}
"""The axes of a World whose simulators have a :class:`Stage`."""

_EDITS: Mapping[str, Callable[[mujoco.MjModel, Parts, Change], None]] = {
    "camera": move_cameras,
    "lighting": light,
    "appearance": recolour,
    "dynamics": change_dynamics,
}
_SCRATCH = 2
"""Simulators that are kept to try starts in."""


def edit(model: mujoco.MjModel, parts: Parts, changes: Sequence[Change]) -> None:
    """Make the changes of a model's arrays, in order; textures and initial states are no part of them."""
    for change in changes:
        if change.axis in _EDITS:
            _EDITS[change.axis](model, parts, change)


class Stage:
    """Perturbs a simulator's own model for an episode.

    The arrays of the model are part of the simulator's capture, which puts them back at the next reset and at a
    restore; textures are not: :meth:`clear` and :meth:`resume` see to them. ``token`` names the textures in force, for
    renderers, which keep those that they were made with; empty where they are the model's own.
    """

    def __init__(self, world: str, model: mujoco.MjModel, parts: Parts):
        self._world, self._model, self.parts = world, model, parts
        self._in_force: tuple[Perturbation, ...] = ()
        self._before: dict[int, np.ndarray] = {}
        self.token = ""

    @property
    def in_force(self) -> bool:
        """Whether anything is."""
        return bool(self._in_force)

    def changes(self, start: Start) -> list[Change]:
        """What the perturbations of ``start`` change."""
        return [change for _, change in changes_of(self._world, AXES, start.perturbations)]

    def clear(self) -> None:
        """Nothing is in force any more."""
        for texture, picture in self._before.items():
            pixels(self._model, texture)[...] = picture
        self._before, self._in_force, self.token = {}, (), ""

    def begin(self, start: Start) -> None:
        """Change the model as ``start`` says; the initial state is the simulator's own matter."""
        found = changes_of(self._world, AXES, start.perturbations)
        edit(self._model, self.parts, [change for _, change in found])
        self._dress(tuple(perturbation for perturbation, _ in found))

    def save(self) -> dict[str, Any]:
        """The part of a snapshot that says what is in force: nothing where nothing is."""
        return {"perturbations": [p.to_json() for p in self._in_force]} if self._in_force else {}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Put the textures of a snapshot in force, whose arrays the capture has put back."""
        wanted = tuple(Perturbation.from_json(data) for data in state.get("perturbations", ()))
        if wanted != self._in_force:
            self.clear()
            self._dress(wanted)

    def _dress(self, perturbations: tuple[Perturbation, ...]) -> None:
        self._in_force = perturbations
        changes = [change for _, change in changes_of(self._world, AXES, perturbations)]
        for change in changes:
            if change.axis == "appearance":
                retexture(self._model, self.parts, change, self._before)
        if self._before:
            self.token = content_hash([p.to_json() for p in perturbations if p.axis == "appearance"])


class StagedSimulator(Simulator):
    """A simulator whose episodes may begin perturbed: what a :class:`Judge` has to know of it."""

    model: mujoco.MjModel
    data: mujoco.MjData
    stage: Stage
    unfair: str | None = None
    """What is out of place or out of reach after the last reset, which was to put it there; none if nothing is."""

    def perturb(self, start: Start, done: frozenset[str] = frozenset()) -> bool:
        """Change state and model as ``start`` says; whether the state was changed. Call it within a reset.

        ``done``: axes that the reset has seen to already.
        """
        changes = self.stage.changes(start)
        moved = [change for change in changes if change.axis.startswith("initial_state") and change.axis not in done]
        self.unfair = None
        for change in moved:
            if change.axis == "initial_state.robot":
                self.unfair = self.move_robot(change) or self.unfair
            else:
                if not movable(self.model, self.stage.parts):
                    raise UnsupportedError(
                        f"initial_state.layout moves things, and task {start.task!r} has none that can be moved"
                    )
                move_things(self.model, self.data, self.stage.parts, change)
        self.stage.begin(start)
        if moved:
            mujoco.mj_forward(self.model, self.data)
        elif changes:
            mujoco.mj_camlight(self.model, self.data)
        return bool(moved)

    def solved(self, step: SimulatorStep) -> bool:
        """Whether the goal holds at a reset, which gave ``step``; asked of simulators that are made for no more."""
        return step.success

    @abstractmethod
    def move_robot(self, change: Change) -> str | None:
        """Put the hand elsewhere, with all that the controllers take for their goals; why that failed, if it did."""


class Judge:
    """Objects to starts, in simulators of its own."""

    def __init__(self, build: Callable[[str], StagedSimulator]):
        self._build = build
        self._simulators: OrderedDict[str, StagedSimulator] = OrderedDict()

    def objection(self, start: Start) -> str | None:
        """See ``World.objection``."""
        start = without_looks(start)
        simulator = self._simulators.pop(start.task, None) or self._build(start.task)
        self._simulators[start.task] = simulator
        while len(self._simulators) > _SCRATCH:
            self._simulators.popitem(last=False)[1].close()
        nominal = _begin(simulator, replace(start, perturbations=()))[1] if start.perturbations else None
        step, standing = _begin(simulator, start)
        if simulator.solved(step):
            return "the task is solved at the start"
        if nominal is None:
            return None
        return simulator.unfair or standing.objection(nominal, simulator.model, simulator.stage.parts)

    def close(self) -> None:
        """Release the simulators."""
        while self._simulators:
            self._simulators.popitem()[1].close()


def without_looks(start: Start) -> Start:
    """``start`` without the perturbations that nothing but pictures depends on."""
    return replace(start, perturbations=tuple(p for p in start.perturbations if p.axis not in LOOKS))


def _begin(simulator: StagedSimulator, start: Start) -> tuple[SimulatorStep, Standing]:
    step = simulator.reset(start, Key(start.seed or 0).stream("world").key(0))
    mujoco.mj_forward(simulator.model, simulator.data)  # some suites leave positions as of before
    return step, Standing.of(simulator.model, simulator.data, simulator.stage.parts)
