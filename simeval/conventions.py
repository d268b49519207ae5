"""What the pictures and numbers between a World and a policy mean: declared by both, compared before anything runs."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import gymnasium

from simeval.errors import ConfigError, unknown

CHOICES: Mapping[str, tuple[str, ...]] = {
    "image_orientation": ("upright", "mirrored", "upside_down"),
    "rotation": ("wxyz", "xyzw", "axis_angle", "axis_angle_2pi", "euler_xyz", "rotation_6d", "matrix"),
    "gripper": ("plus_closes", "minus_closes", "one_closes", "zero_closes", "width"),
    "action_frame": ("world", "base", "hand"),
}
"""Convention -> the words for it; docs/conventions.md says what each means."""

_OF_IMAGES = ("image_size", "image_orientation", "image_processing")
_OF_PROPRIO = ("proprio", "rotation")


def _listed(name: str, value: Any, length: int | None) -> tuple[Any, ...]:
    kind = int if name == "image_size" else str
    parts = (value, value) if name == "image_size" and isinstance(value, int) else value
    if isinstance(parts, str) or not isinstance(parts, Iterable):
        raise ConfigError(f"the convention {name} is a list; received {value!r}")
    listed = tuple(parts)
    if not all(isinstance(part, kind) for part in listed) or (length is not None and len(listed) != length):
        raise ConfigError(f"the convention {name} is a list of {length or ''} {kind.__name__}; received {value!r}")
    return listed


@dataclass(frozen=True, slots=True, kw_only=True)
class Conventions:
    """What one side says of what passes between a World and a policy; none: it does not say.

    ``image_size`` (height, width) [pixels] of every picture; ``image_orientation``, ``rotation``, ``gripper`` and
    ``action_frame`` are words of ``CHOICES``; ``image_processing``: what was done to a picture after it was drawn.
    ``proprio`` names the parts of that vector, and ``action`` those of an action, in order; ``rotation`` is the form of
    rotations in ``proprio``. ``action_dim``: the numbers in an action; ``control_dt`` [s] between two. ``chunk``: the
    actions that a policy predicts at once, of which ``executed`` are executed; a World says nothing of these.

    ``settings``: convention -> the setting of this side that changes it, for messages.
    """

    image_size: tuple[int, int] | None = None
    image_orientation: str | None = None
    image_processing: str | None = None
    proprio: tuple[str, ...] | None = None
    rotation: str | None = None
    action: tuple[str, ...] | None = None
    action_frame: str | None = None
    action_dim: int | None = None
    gripper: str | None = None
    control_dt: float | None = None
    chunk: int | None = None
    executed: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        for name, words in CHOICES.items():
            value = getattr(self, name)
            if value is not None and value not in words:
                raise unknown(f"{name} of a convention", value, words)
        for name, length in (("image_size", 2), ("proprio", None), ("action", None)):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, _listed(name, value, length))

    def declared(self) -> dict[str, Any]:
        """Convention -> value, of those that are declared."""
        return {name: getattr(self, name) for name in NAMES if getattr(self, name) is not None}

    def to_json(self) -> dict[str, Any]:
        """What is declared, as JSON data."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in self.declared().items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], settings: Mapping[str, str] | None = None) -> "Conventions":
        """The inverse of :meth:`to_json`; ``ConfigError`` for what is no convention, or no value of one."""
        for name, value in data.items():
            if name not in NAMES:
                raise unknown("convention", name, NAMES)
            if value is None:
                continue
            if name in _NUMBERS and (isinstance(value, bool) or not isinstance(value, _NUMBERS[name])):
                raise ConfigError(f"the convention {name} is a number; received {value!r}")
            if name in ("image_processing", *CHOICES) and not isinstance(value, str):
                raise ConfigError(f"the convention {name} is a word; received {value!r}")
        return cls(**data, settings=settings or {})

    def over(self, below: "Conventions") -> "Conventions":
        """These conventions, and those of ``below`` where these say nothing."""
        own = self.declared()
        settings = {name: text for name, text in below.settings.items() if name not in own}
        return replace(below, **own, settings={**settings, **self.settings})

    def seen_by(self, observation_keys: Iterable[str]) -> "Conventions":
        """Without what is said of observations that are not read."""
        unseen: dict[str, Any] = dict.fromkeys(_unseen(observation_keys))
        return replace(self, **unseen)

    def of_spaces(
        self, observation: gymnasium.spaces.Dict, action: gymnasium.spaces.Box, control_dt: float
    ) -> "Conventions":
        """These conventions of a World, with what its spaces and control step [s] say besides."""
        shapes = [space.shape or () for key, space in observation.spaces.items() if key.startswith("image_")]
        pictures = {(shape[0], shape[1]) for shape in shapes if len(shape) == 3}
        said = Conventions(
            image_size=pictures.pop() if len(pictures) == 1 else None,
            action_dim=math.prod(action.shape),
            control_dt=control_dt,
        )
        return self.over(said)


UNDECLARED = Conventions()
"""Nothing is said."""
NAMES: tuple[str, ...] = tuple(item.name for item in fields(Conventions) if item.name != "settings")
"""Every convention, in the order of the table."""
_NUMBERS: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("action_dim", "chunk", "executed"), int),
    "control_dt": (int, float),
}

_LIBERO = Conventions(
    image_size=(224, 224),
    image_orientation="mirrored",
    image_processing="drawn at 256, resized by PIL's bilinear filter and padded",
    proprio=("hand_position", "hand_rotation", "finger_positions"),
    rotation="axis_angle_2pi",
    action=("hand_displacement", "hand_turn", "gripper"),
    action_frame="base",
    action_dim=7,
    gripper="plus_closes",
)
PRESETS: Mapping[str, Conventions] = {
    "libero_openpi": _LIBERO,
    "libero_openvla": replace(
        _LIBERO,
        image_processing="drawn at 256, JPEG at quality 95, Lanczos, the middle 0.9 of the area",
        proprio=None,
        rotation=None,
        gripper="zero_closes",
    ),
    "libero_lerobot": replace(_LIBERO, image_size=(360, 360), image_processing="drawn at 360"),
}
"""What policies of three codebases expect of LIBERO: ``world.convention`` of the same names gives it."""


def read_conventions(given: str | Mapping[str, Any], where: str = "policy.conventions") -> Conventions:
    """Conventions as configured: a preset's name, or a mapping of conventions, with ``preset`` to start from."""
    data = {"preset": given} if isinstance(given, str) else {str(name): value for name, value in given.items()}
    preset = data.pop("preset", None)
    if preset is not None and preset not in PRESETS:
        raise unknown("preset of conventions", preset, PRESETS)
    base = UNDECLARED if preset is None else PRESETS[preset]
    merged = Conventions.from_json({**base.to_json(), **data})
    return replace(merged, settings={name: f"{where}.{name}" for name in merged.declared()})


@dataclass(frozen=True, slots=True)
class Match:
    """One convention as both sides declare it (none: not declared), and the settings that change it."""

    name: str
    policy: Any
    world: Any
    settings: tuple[str, ...] = ()

    @property
    def differs(self) -> bool:
        """Whether both declare it, and not the same."""
        if self.policy is None or self.world is None:
            return False
        if self.name == "control_dt":
            return not math.isclose(self.policy, self.world, rel_tol=1e-6)
        return self.policy != self.world

    @property
    def verdict(self) -> str:
        """``differs``, or by how many sides it is declared."""
        sides = (self.policy is not None) + (self.world is not None)
        return "differs" if self.differs else ("not declared", "by one", "by both")[sides]

    def told(self, world: str) -> str:
        """The difference in a line: what is expected, what is given, what changes it."""
        remedy = (
            f"set {' or '.join(self.settings)}"
            if self.settings
            else "no setting changes it: use another policy or world"
        )
        return (
            f"{self.name}: the policy expects {in_words(self.policy)}, world {world!r} gives {in_words(self.world)} "
            f"({remedy})"
        )


def match(policy: Conventions, world: Conventions, observation_keys: Iterable[str]) -> list[Match]:
    """Every convention side by side, but those of observations that the policy does not read."""
    unseen = _unseen(observation_keys)
    return [
        Match(
            name,
            getattr(policy, name),
            getattr(world, name),
            tuple(side.settings[name] for side in (world, policy) if name in side.settings),
        )
        for name in NAMES
        if name not in unseen
    ]


def _unseen(observation_keys: Iterable[str]) -> tuple[str, ...]:
    """The conventions of what is not among ``observation_keys``."""
    keys = tuple(observation_keys)
    images = () if any(key.startswith("image_") for key in keys) else _OF_IMAGES
    return (*images, *(() if "proprio" in keys else _OF_PROPRIO))


def in_words(value: Any) -> str:
    """A convention's value for people."""
    if value is None:
        return "not declared"
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
