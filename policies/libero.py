"""A scripted policy for LIBERO's tasks of one object and one place: reach, grasp, carry, release."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from simeval.errors import ConfigError
from simeval.noise import StepKey
from simeval.policy import Memory, Policy, PolicyStep
from simeval.types import Observation, WorldSpec

_REACH_PER_STEP = 0.05
"""How far an action of 1 moves the gripper's goal [m]."""
_ABOVE, _DOWN, _CLOSE, _LIFT, _CARRY, _LOWER, _OPEN, _RETREAT = range(8)
_WAIT = {_CLOSE: 8, _OPEN: 6}
"""Phases that last so many control steps, whatever is seen."""


@dataclass(frozen=True)
class LiberoPickPlace(Policy):
    """Takes the first thing that the task's goal names to the second, by their poses in ``state``.

    Heights and distances [m] are above the object's and the place's own origins, and from the gripper's point between
    its fingers. A bowl is too wide for the fingers and is held by its rim, ``rim`` to the side of its centre. The
    gripper keeps the rotation that it begins with; the policy knows no drawers, doors or knobs.
    """

    hover: float = 0.15
    grasp_height: float = 0.01
    rim: float = 0.045
    rim_height: float = 0.03
    release_height: float = 0.12
    closed: float = 1.0
    opened: float = -1.0

    observation_keys = ("state",)

    def bind(self, spec: WorldSpec) -> "LiberoPickPlace":
        """See ``Policy.bind``: fingers open and close as the World's convention says."""
        super().bind(spec)
        if spec.action_space.shape != (7,) or spec.observation_space["state"].shape != (37,):
            raise ConfigError(
                f"policy LiberoPickPlace acts in LIBERO; world {spec.name!r} has actions {spec.action_space.shape} and "
                f"state {spec.observation_space['state'].shape}"
            )
        if spec.action_space.low[6] == 0:
            return replace(self, closed=0.0, opened=1.0)
        return self

    def initial_memory(self, n: int) -> Memory:
        """See ``Policy.initial_memory``: the phase, and for how many steps it lasts."""
        return {"phase": np.zeros(n, np.int64), "steps": np.zeros(n, np.int64), "held": np.zeros((n, 3))}

    def act(
        self, observation: Observation, instruction: Sequence[str], memory: Memory, keys: Sequence[StepKey]
    ) -> PolicyStep:
        """See ``Policy.act``."""
        count = len(instruction)
        action = np.zeros((count, 7), np.float32)
        phase, steps, held = (np.array(memory[name]) for name in ("phase", "steps", "held"))
        for row in range(count):
            state = np.asarray(observation["state"][row])
            bowl = "bowl" in instruction[row]
            goal = self._goal(int(phase[row]), state, held[row], bowl)
            if self._arrived(int(phase[row]), int(steps[row]), state[:3], goal):
                if phase[row] == _CLOSE:
                    held[row] = state[9:12] - state[:3]
                phase[row], steps[row] = min(phase[row] + 1, _RETREAT), 0
                goal = self._goal(int(phase[row]), state, held[row], bowl)
            else:
                steps[row] += 1
            action[row, :3] = np.clip((goal - state[:3]) / _REACH_PER_STEP, -1, 1)
            action[row, 6] = self.closed if _CLOSE <= phase[row] <= _LOWER else self.opened
        return PolicyStep(action, {"phase": phase, "steps": steps, "held": held})

    def _goal(self, phase: int, state: np.ndarray, held: np.ndarray, bowl: bool) -> np.ndarray:
        """Where the gripper is to be [m]."""
        grasp = state[9:12] + np.array([0, self.rim, self.rim_height] if bowl else [0, 0, self.grasp_height])
        place = state[16:19] - np.array([held[0], held[1], 0])
        if phase == _ABOVE:
            return grasp + np.array([0, 0, self.hover])
        if phase in (_DOWN, _CLOSE):
            return grasp
        if phase == _LIFT:
            return np.array([state[0], state[1], place[2] + self.release_height + self.hover])
        if phase in (_CARRY, _RETREAT):
            return place + np.array([0, 0, self.release_height + self.hover])
        return place + np.array([0, 0, self.release_height])

    def _arrived(self, phase: int, steps: int, position: np.ndarray, goal: np.ndarray) -> bool:
        if phase in _WAIT:
            return steps >= _WAIT[phase]
        near = 0.012 if phase in (_DOWN, _LOWER) else 0.025
        return bool(np.linalg.norm(goal - position) < near) or steps > 60
