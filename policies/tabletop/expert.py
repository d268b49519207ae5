"""The scripted expert of the tabletop: it reads the sentence and the privileged ``state``, and follows a plan of moves.

A sentence becomes a plan: a tuple of ``Move``s. The memory is the place in the plan and the steps spent there, so a
forked episode goes on as its parent would. What a move needs is read from the current state alone, which makes the
expert robust to noise and to being interrupted; a move whose outcome is wrong sends it back to where the attempt began.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from policies.tabletop.language import parse
from policies.tabletop.plans import PLANS, Plan
from policies.tabletop.scene import Scene, shared
from simeval.noise import StepKey
from simeval.policy import Memory, Policy, PolicyStep
from simeval.types import Observation


@lru_cache(maxsize=4096)
def _plan(task: str, things: tuple[tuple[str, int], ...]) -> Plan:
    return PLANS[task](**dict(things))


VERSION = 1


class TabletopExpert(Policy):
    """Solves every tabletop task from the privileged state and the sentence (``docs/tabletop.md`` has its figures).

    It does what the sentence says. A sentence about a thing that is not in the scene leaves it waiting; one outside the
    grammar raises ``InstructionError``.
    """

    observation_keys = ("state",)

    @property
    def fingerprint(self) -> str:
        """See ``Policy.fingerprint``."""
        return f"TabletopExpert/{VERSION}"

    def initial_memory(self, n: int) -> Memory:
        """``move`` [n], the place in the plan, and ``steps`` [n], control steps spent in that move."""
        return {"move": np.zeros(n, dtype=np.int64), "steps": np.zeros(n, dtype=np.int64)}

    def act(
        self, observation: Observation, instruction: Sequence[str], memory: Memory, keys: Sequence[StepKey]
    ) -> PolicyStep:
        """See ``Policy.act``; deterministic, ``keys`` are not used."""
        states = np.asarray(observation["state"])
        move, steps = memory["move"].copy(), memory["steps"].copy()
        action = np.zeros((len(states), 5), dtype=np.float32)
        for row, state in enumerate(states):
            scene, sentence = Scene(state), parse(instruction[row])
            things = tuple((reference.role, reference.find(scene)) for reference in sentence.references)
            found = tuple((role, thing) for role, thing in things if thing is not None)
            if len(found) < len(things):
                continue
            plan = _plan(sentence.task, found)
            move[row], steps[row] = _follow(plan, scene, int(move[row]), int(steps[row]))
            action[row] = _action(plan, scene, int(move[row]))
        return PolicyStep(action, {"move": move, "steps": steps})


def _follow(plan: Plan, scene: Scene, place: int, steps: int) -> tuple[int, int]:
    """Place in the plan and steps spent there, for the step about to be taken; a finished plan stays at its end."""
    if place >= len(plan):
        return place, steps
    move = plan[place]
    if not move.is_over(scene, steps):
        return place, steps + 1
    if move.check is not None and not move.check(scene):
        return place - move.back, 1
    return place + 1, 1


def _action(plan: Plan, scene: Scene, place: int) -> np.ndarray:
    move = plan[min(place, len(plan) - 1)]
    scale = np.array(shared("layout.json")["action"]["scale"])
    if place >= len(plan):
        return np.array([0, 0, 0, 0, move.grip], dtype=np.float32)
    target = np.array(move.target(scene))
    before = np.append(scene["tip_target"], scene["yaw_target"])
    change = np.clip((target - before) / scale[:4], -move.speed, move.speed)
    return np.append(change, move.grip).astype(np.float32)
