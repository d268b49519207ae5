"""The scripted experts that ship with Meta-World, chosen by the instruction."""

import difflib
import json
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import Any

import numpy as np

from simeval.errors import InstructionError, MissingPackageError
from simeval.noise import StepKey
from simeval.policy import Memory, Policy, PolicyStep
from simeval.types import Observation


class MetaWorldExpert(Policy):
    """The package's expert for the task that the instruction names; it reads ``state`` [n, 39] and remembers nothing.

    Actions [n, 4] float32 are clipped to -1..1, as the package's environments do. An instruction that is no task's
    sentence raises ``InstructionError`` with the nearest one.
    """

    observation_keys = ("state",)

    def __init__(self) -> None:
        self._experts = _experts()
        # The experts announce at every large error that environments clip actions.
        warnings.filterwarnings("ignore", message=r"Constant\(s\) may be too high", category=UserWarning)

    @property
    def fingerprint(self) -> str:
        """See ``Policy.fingerprint``."""
        return f"MetaWorldExpert, metaworld {version('metaworld')}"

    def act(
        self, observation: Observation, instruction: Sequence[str], memory: Memory, keys: Sequence[StepKey]
    ) -> PolicyStep:
        """See ``Policy.act``."""
        state = observation["state"]
        action = np.empty((len(state), 4), dtype=np.float32)
        for row, sentence in enumerate(instruction):
            # A copy: some of the experts write into their argument.
            action[row] = self._expert(sentence).get_action(state[row].copy())
        return PolicyStep(np.clip(action, -1.0, 1.0, out=action), memory)

    def _expert(self, sentence: str) -> Any:
        expert = self._experts.get(sentence)
        if expert is None:
            near = difflib.get_close_matches(sentence, self._experts, n=1, cutoff=0.0)[0]
            raise InstructionError(f"no Meta-World expert for the instruction {sentence!r}; the nearest is {near!r}")
        return expert


@cache
def _experts() -> Mapping[str, Any]:
    try:
        from metaworld.policies import ENV_POLICY_MAP
    except ModuleNotFoundError as error:
        if error.name != "metaworld":
            raise
        raise MissingPackageError("Meta-World", "simeval[metaworld]") from error
    sentences = json.loads((files("assets") / "metaworld" / "instructions.json").read_text(encoding="utf-8"))
    experts: Mapping[str, Any] = ENV_POLICY_MAP
    return {sentence: experts[task]() for task, sentence in sentences.items()}
