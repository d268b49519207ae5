"""What a server's answers and metadata must be, before anything is done with them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from policies.remote.layout import Layout, declared_layout, fill, observation_keys
from policies.remote.links import ServerError
from simeval.conventions import Conventions
from simeval.errors import ConfigError
from simeval.noise import StepKey
from simeval.serve.messages import key_text
from simeval.serve.service import PROTOCOL
from simeval.types import Observation, WorldSpec


@dataclass(frozen=True, slots=True)
class Declaration:
    """What a simeval server says of itself: its policy, the fields that it reads, its actions and initial memory."""

    policy: str
    fields: Mapping[str, Any]
    layout: Layout
    action_dim: int
    horizon: int
    control_dt: float
    memory: Mapping[str, Any]
    conventions: Conventions


def declaration(greeting: Mapping[str, Any], url: str) -> Declaration | None:
    """The metadata of a simeval server; none where another's are given."""
    if greeting.get("protocol") != PROTOCOL:
        return None
    try:
        return Declaration(
            str(greeting["policy"]),
            greeting["observation"],
            declared_layout(greeting["observation"]),
            int(greeting["action_dim"]),
            int(greeting["horizon"]),
            float(greeting["control_dt"]),
            dict(greeting["memory"]),
            Conventions.from_json(greeting.get("conventions", {})),
        )
    except (ConfigError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise ServerError(
            f"the policy server at {url} sent metadata that are not those of {PROTOCOL} ({error!r})"
        ) from error


@dataclass(frozen=True, slots=True)
class Wording:
    """How an observation is put: its layout, the name of the instruction, what is always the same, and the key.

    ``keyed``: the server takes the row's noise key, so that its answer is a function of the row alone.
    """

    layout: Layout
    prompt: str
    constants: Mapping[str, Any]
    keyed: bool

    @property
    def observation_keys(self) -> tuple[str, ...]:
        """The observation keys that are read."""
        return observation_keys(self.layout)

    def messages(
        self, observation: Observation, instruction: Sequence[str], keys: Sequence[StepKey]
    ) -> list[dict[str, Any]]:
        """A message for each row."""
        return [
            {
                **fill(self.layout, observation, row),
                self.prompt: instruction[row],
                **self.constants,
                **({"noise_key": key_text(key)} if self.keyed else {}),
            }
            for row, key in enumerate(keys)
        ]

    def check(self, spec: WorldSpec, declared: Declaration | None) -> None:
        """Raise ``ConfigError`` where the World's observations do not make the message that the server declares."""
        spaces = spec.observation_space.spaces
        if any(key not in spaces for key in self.observation_keys):
            return  # Policy.bind says which
        blank = {key: np.zeros((1, *(spaces[key].shape or ())), spaces[key].dtype) for key in self.observation_keys}
        message = fill(self.layout, blank, 0)
        if declared is None:
            return
        wrong = [f"it lacks {name!r}" for name in declared.fields if name not in message]
        for name, field in declared.fields.items():
            value = message.get(name)
            if isinstance(value, np.ndarray) and [value.dtype.str, *value.shape] != [field["dtype"], *field["shape"]]:
                wrong.append(f"{name!r} is {value.dtype} {value.shape}, not {field['dtype']} {tuple(field['shape'])}")
        if not np.isclose(declared.control_dt, spec.control_dt, rtol=1e-6):
            wrong.append(f"a control step is {spec.control_dt:g} s, not {declared.control_dt:g} s")
        if wrong:
            raise ConfigError(
                f"what world {spec.name!r} gives does not fit the server's policy: {'; '.join(wrong)}; "
                "see policy.observation"
            )


def numbers(answer: Mapping[str, Any], url: str, columns: int, least: int, exactly: bool = False) -> np.ndarray:
    """``actions`` [H, columns] of an answer, finite, H at least (or ``exactly``) ``least``; else ``ServerError``."""
    who = f"the policy server at {url}"
    if "actions" not in answer:
        raise ServerError(f"{who} sent {', '.join(map(repr, answer)) or 'nothing'}; expected 'actions' [H, {columns}]")
    try:
        actions = np.asarray(answer["actions"])
    except ValueError as error:
        raise ServerError(f"{who} sent actions that are no array ({error}); expected [H, {columns}]") from error
    shaped = actions.ndim == 2 and actions.shape[1] == columns and actions.dtype.kind in "fiu"
    if not shaped or len(actions) < least or (exactly and len(actions) > least):
        raise ServerError(
            f"{who} sent actions {actions.dtype} {actions.shape}; expected numbers [H, {columns}], H "
            f"{'=' if exactly else '>='} {least}, the actions that are executed"
        )
    if not np.isfinite(actions).all():
        row = int(np.flatnonzero(~np.isfinite(actions).all(axis=1))[0])
        raise ServerError(f"{who} sent actions that are not finite: action {row} is {actions[row].tolist()}")
    return actions
