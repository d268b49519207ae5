"""How the codebases that evaluate policies on LIBERO show it to them and act in it: declared, not assumed."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from envs.libero.pictures import centre_crop, jpeg_round_trip, lanczos3, pad_bilinear
from simeval.conventions import Conventions
from simeval.errors import ConfigError, unknown

_CHOICES: Mapping[str, tuple[str, ...]] = {
    "orientation": ("rotated", "upright", "simulator"),
    "resize": ("pad_bilinear", "lanczos3", "none"),
    "proprio": ("axis_angle", "none"),
    "gripper": ("direct", "openvla"),
}

_ORIENTATIONS = {"rotated": "mirrored", "upright": "upright", "simulator": "upside_down"}


def _caps(spatial: int) -> Mapping[str, int]:
    rest = {"libero_object": 280, "libero_goal": 300, "libero_10": 520, "libero_90": 400}
    return MappingProxyType({"libero_spatial": spatial, **rest})


@dataclass(frozen=True)
class Convention:
    """One codebase's way with LIBERO. Fields left out are those of ``openpi``.

    ``orientation`` starts from LIBERO's picture, which is upside down: ``simulator`` as it is, ``rotated`` by 180°
    (right side up, and left and right exchanged), ``upright`` flipped (as a camera would see it). Then follow the
    ``jpeg`` round trip, the ``resize`` to ``image_size`` [pixels], and the centre crop of ``crop_area``. ``proprio`` is
    the gripper's position [m], its rotation as axis times angle [rad], 0..2π as the quaternion gives it, and the two
    fingers' positions [m]. ``gripper`` says what the action's last number means: ``direct`` is -1 open, +1 close;
    ``openvla`` is 0 close, 1 open, of which only the nearer is taken. ``settle_steps`` of ``settle_action`` (seven
    numbers as LIBERO itself takes them) precede an episode and are no part of it. ``placement_seed`` draws what an
    initial state does not fix (the places of fixtures), with the state's index added if ``placement_per_state``.
    ``caps`` [control steps] are by suite.
    """

    name: str = "openpi"
    cameras: tuple[str, ...] = ("agentview", "wrist")
    render_size: int = 256
    orientation: str = "rotated"
    jpeg: bool = False
    resize: str = "pad_bilinear"
    image_size: int = 224
    crop_area: float = 1.0
    proprio: str = "axis_angle"
    gripper: str = "direct"
    settle_steps: int = 10
    settle_action: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0)
    placement_seed: int = 7
    placement_per_state: bool = False
    caps: Mapping[str, int] = field(default_factory=lambda: _caps(220))

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise unknown(f"{name} of a LIBERO convention", getattr(self, name), choices)
        if not 0 < self.crop_area <= 1:
            raise ConfigError(f"crop_area is a share of the picture, above 0 and up to 1; received {self.crop_area}")
        if self.resize == "none" and self.image_size != self.render_size:
            raise ConfigError(
                f"a convention without resizing shows what it renders: image_size {self.image_size} is not "
                f"render_size {self.render_size}"
            )
        if len(self.settle_action) != 7 or self.settle_steps < 0:
            raise ConfigError("a convention settles for 0 or more steps of an action of 7 numbers")

    def describe(self) -> str:
        """Every value, in one line."""
        values = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        return "convention(" + " ".join(f"{name}={_plain(value)}" for name, value in values.items()) + ")"

    def declared(self) -> Conventions:
        """What of it concerns policies, in the words that are the same for all Worlds."""
        resized = {"pad_bilinear": ["resized by PIL's bilinear filter and padded"], "lanczos3": ["Lanczos"], "none": []}
        made = [f"drawn at {self.render_size}"]
        made += ["JPEG at quality 95"] if self.jpeg else []
        made += resized[self.resize]
        made += [f"the middle {self.crop_area:g} of the area"] if self.crop_area < 1 else []
        shown = self.proprio == "axis_angle"
        changed = {
            "image_orientation": "orientation",
            "image_processing": "resize",
            "proprio": "proprio",
            "rotation": "proprio",
            "gripper": "gripper",
        }
        return Conventions(
            image_size=(self.image_size, self.image_size),
            image_orientation=_ORIENTATIONS[self.orientation],
            image_processing=", ".join(made),
            proprio=("hand_position", "hand_rotation", "finger_positions") if shown else None,
            rotation="axis_angle_2pi" if shown else None,
            action=("hand_displacement", "hand_turn", "gripper"),
            action_frame="base",
            action_dim=7,
            gripper="zero_closes" if self.gripper == "openvla" else "plus_closes",
            settings={
                "image_size": "world.image_size",
                **{name: f"world.convention={{preset: {self.name}, {own}: …}}" for name, own in changed.items()},
            },
        )

    def picture(self, drawn: np.ndarray) -> np.ndarray:
        """What a policy sees: uint8 ``[image_size, image_size, 3]`` of an upright picture of ``render_size``."""
        if self.orientation == "rotated":
            drawn = drawn[:, ::-1]
        elif self.orientation == "simulator":
            drawn = drawn[::-1]
        drawn = np.ascontiguousarray(drawn)
        if self.jpeg:
            drawn = jpeg_round_trip(drawn)
        if self.resize == "pad_bilinear":
            drawn = pad_bilinear(drawn, self.image_size)
        elif self.resize == "lanczos3":
            drawn = lanczos3(drawn, self.image_size)
        return drawn if self.crop_area == 1 else centre_crop(drawn, self.crop_area)

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """The lowest and the highest action, float32 ``[7]``."""
        low, high = -np.ones(7, np.float32), np.ones(7, np.float32)
        if self.gripper == "openvla":
            low[6] = 0
        return low, high

    def action(self, action: np.ndarray) -> np.ndarray:
        """LIBERO's action, float64 ``[7]``, for a policy's."""
        action = np.array(action, dtype=np.float64)
        if self.gripper == "openvla":
            action[6] = -np.sign(2 * action[6] - 1)
        return action

    def placement(self, index: int) -> int:
        """The seed of what initial state ``index`` does not fix."""
        return self.placement_seed + (index if self.placement_per_state else 0)


CONVENTIONS: Mapping[str, Convention] = {
    "openpi": Convention(),
    "openvla": Convention(
        name="openvla",
        cameras=("agentview",),
        jpeg=True,
        resize="lanczos3",
        crop_area=0.9,
        proprio="none",
        gripper="openvla",
        placement_seed=0,
    ),
    "lerobot": Convention(
        name="lerobot",
        render_size=360,
        resize="none",
        image_size=360,
        placement_seed=1000,
        placement_per_state=True,
        caps=_caps(280),
    ),
}
"""The presets; docs/libero.md says where each value comes from."""


def resolve(asked: str | Mapping[str, Any]) -> Convention:
    """A preset by name, or a mapping: ``preset`` and the fields that differ from it."""
    changes: dict[str, Any] = {} if isinstance(asked, str) else {str(key): value for key, value in asked.items()}
    preset = asked if isinstance(asked, str) else changes.pop("preset", "openpi")
    if preset not in CONVENTIONS:
        raise unknown("LIBERO convention", preset, CONVENTIONS)
    fields = {item.name for item in dataclasses.fields(Convention)} - {"name"}
    for key in changes:
        if key not in fields:
            raise unknown("field of a LIBERO convention", key, sorted(fields))
    base = CONVENTIONS[preset]
    for key in ("cameras", "settle_action"):
        if key in changes:
            changes[key] = tuple(changes[key])
    if "caps" in changes:
        changes["caps"] = MappingProxyType({**base.caps, **changes["caps"]})
    return dataclasses.replace(base, **changes)


def axis_angle(xyzw: np.ndarray) -> np.ndarray:
    """Axis times angle [rad], the angle 0..2π, of a unit quaternion ``[x, y, z, w]`` whose sign is left as it is."""
    w = min(max(float(xyzw[3]), -1.0), 1.0)
    sine = math.sqrt(1.0 - w * w)
    return np.zeros(3) if sine == 0 else xyzw[:3] * 2.0 * math.acos(w) / sine


def _plain(value: Any) -> str:
    return str(dict(value)) if isinstance(value, Mapping) else str(value)
