"""What a learned policy reads and predicts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from simeval.conventions import UNDECLARED, Conventions
from simeval.errors import ConfigError
from simeval.types import WorldSpec


@dataclass(frozen=True, slots=True)
class Features:
    """The interface of a learned policy.

    ``images``: observation key -> side [pixels] of square uint8 RGB images; ``numbers``: observation key -> length of a
    vector; ``action_dim`` A; ``horizon`` H, actions in a chunk; ``control_dt`` [s] between two of them;
    ``conventions``: what the World of the data declared of what is read and predicted.
    """

    images: Mapping[str, int]
    numbers: Mapping[str, int]
    action_dim: int
    horizon: int
    control_dt: float
    conventions: Conventions = UNDECLARED

    @property
    def observation_keys(self) -> tuple[str, ...]:
        """The observation keys that are read."""
        return (*self.images, *self.numbers)

    @property
    def number_dim(self) -> int:
        """The length of all vectors, one after the other."""
        return sum(self.numbers.values())

    def to_json(self) -> dict[str, Any]:
        """The same as JSON data."""
        return {
            "images": dict(self.images),
            "numbers": dict(self.numbers),
            "action_dim": self.action_dim,
            "horizon": self.horizon,
            "control_dt": self.control_dt,
            "conventions": self.conventions.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Features":
        """The inverse of :meth:`to_json`."""
        return cls(
            {str(key): int(side) for key, side in data["images"].items()},
            {str(key): int(length) for key, length in data["numbers"].items()},
            int(data["action_dim"]),
            int(data["horizon"]),
            float(data["control_dt"]),
            Conventions.from_json(data.get("conventions", {})),
        )

    def declared(self) -> Conventions:
        """The conventions of the data, with what the features themselves say."""
        sides = set(self.images.values())
        size = (sides.pop(),) * 2 if len(sides) == 1 else None
        said = Conventions(image_size=size, action_dim=self.action_dim, control_dt=self.control_dt)
        return said.over(replace(self.conventions, image_size=None))

    def check(self, spec: WorldSpec) -> None:
        """Raise ``ConfigError`` naming everything in which a World gives something else than what was learned from."""
        spaces = spec.observation_space.spaces
        wanted: dict[str, tuple[int, ...]] = {key: (side, side, 3) for key, side in self.images.items()}
        wanted |= {key: (length,) for key, length in self.numbers.items()}
        wrong = []
        for key, shape in wanted.items():
            if key not in spaces:
                hint = f" (add world.cameras=[{key.removeprefix('image_')}])" if key.startswith("image_") else ""
                wrong.append(f"no observation {key!r}{hint}")
            elif spaces[key].shape != shape:
                wrong.append(f"observation {key!r} is {spaces[key].shape}, not {shape}")
        if spec.action_space.shape != (self.action_dim,):
            wrong.append(f"actions are {spec.action_space.shape}, not {(self.action_dim,)}")
        if not np.isclose(spec.control_dt, self.control_dt, rtol=1e-6):
            wrong.append(f"a control step is {spec.control_dt:g} s, not {self.control_dt:g} s")
        if wrong:
            raise ConfigError(
                f"world {spec.name!r} does not fit what this policy was trained on: {'; '.join(wrong)}; "
                f"the world gives: {', '.join(spaces)}"
            )


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a network sees: uint8 ``images`` [n, 3, side, side], raw ``numbers`` [n, P], ``tokens`` [n, W]."""

    images: Mapping[str, torch.Tensor]
    numbers: torch.Tensor
    tokens: torch.Tensor

    def __len__(self) -> int:
        return len(self.tokens)

    def to(self, device: torch.device) -> "Inputs":
        """The same on another device."""
        return Inputs(
            {key: value.to(device, non_blocking=True) for key, value in self.images.items()},
            self.numbers.to(device, non_blocking=True),
            self.tokens.to(device, non_blocking=True),
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """Inputs, the raw actions [n, H, A] that followed, and the raw numbers ``later`` [n, 2, P]: after these actions,
    and at the end of the episode. Beyond that, its last action and numbers are repeated.
    """

    inputs: Inputs
    action: torch.Tensor
    later: torch.Tensor

    def to(self, device: torch.device) -> "Batch":
        """The same on another device."""
        action, later = (x.to(device, non_blocking=True) for x in (self.action, self.later))
        return Batch(self.inputs.to(device), action, later)


def channels_first(images: np.ndarray) -> torch.Tensor:
    """Images uint8 [n, H, W, 3] as a tensor [n, 3, H, W]."""
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(images, -1, 1)))


def stacked_numbers(features: Features, observation: Mapping[str, Any]) -> torch.Tensor:
    """The vectors of a batch, one after the other [n, P], float32."""
    parts: Sequence[np.ndarray] = [np.asarray(observation[key], dtype=np.float32) for key in features.numbers]
    if not parts:
        return torch.zeros(len(observation[features.observation_keys[0]]), 0)
    return torch.from_numpy(np.concatenate(parts, axis=1))
