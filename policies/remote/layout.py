"""How an observation goes to a server: which of the World's observations, under which name, cut and resized how."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simeval.conventions import PRESETS as CONVENTIONS
from simeval.conventions import UNDECLARED, Conventions
from simeval.errors import ConfigError, unknown
from simeval.settings import whole
from simeval.types import Observation

_SETTINGS = ("from", "begin", "end", "size", "channels_first")


@dataclass(frozen=True, slots=True)
class Source:
    """Where one entry of a message comes from: observation ``keys``, one after the other, of which ``begin:end``.

    ``size`` (height, width): images uint8 [H, W, 3] are resized to it as openpi's ``resize_with_pad`` does.
    ``channels_first``: they are sent as [3, H, W].
    """

    keys: tuple[str, ...]
    begin: int = 0
    end: int | None = None
    size: tuple[int, int] | None = None
    channels_first: bool = False

    def take(self, observation: Observation, row: int) -> np.ndarray:
        """The entry of one row."""
        parts = [np.asarray(observation[key])[row] for key in self.keys]
        value = parts[0] if len(parts) == 1 else np.concatenate(parts)
        if self.begin or self.end is not None:
            value = value[self.begin : self.end]
        if self.size is not None:
            value = resize_with_pad(value, *self.size)
        if self.channels_first:
            value = np.moveaxis(value, -1, 0)
        return np.ascontiguousarray(value)


Layout = Mapping[str, Any]
"""Name in the message -> ``Source``, or a nested mapping of such."""


def read_layout(entries: Mapping[str, Any], where: str = "policy.observation") -> dict[str, Any]:
    """A layout from its configuration.

    A value is an observation key, or ``{from: KEY or [KEYS], begin, end, size, channels_first}``, or, without
    ``from``, a nested mapping; null leaves the entry out.
    """
    layout: dict[str, Any] = {}
    for name, value in entries.items():
        if value is None:
            continue
        if isinstance(value, str):
            layout[name] = Source((value,))
        elif isinstance(value, Mapping) and "from" in value:
            layout[name] = _source(value, f"{where}.{name}")
        elif isinstance(value, Mapping):
            layout[name] = read_layout(value, f"{where}.{name}")
        else:
            raise ConfigError(
                f"{where}.{name} is an observation key, a mapping with 'from', or a mapping of such; received {value!r}"
            )
    return layout


def _source(value: Mapping[str, Any], where: str) -> Source:
    for setting in value:
        if setting not in _SETTINGS:
            raise unknown(f"setting of {where}", setting, _SETTINGS)
    keys = (value["from"],) if isinstance(value["from"], str) else tuple(value["from"])
    if not keys or not all(isinstance(key, str) for key in keys):
        raise ConfigError(f"{where}.from is an observation key or a list of them; received {value['from']!r}")
    size, end = value.get("size"), value.get("end")
    sides = [] if size is None else [size, size] if isinstance(size, int) else list(size)
    if len(sides) not in (0, 2):
        raise ConfigError(f"{where}.size is a side or [height, width] in pixels; received {size!r}")
    return Source(
        keys,
        whole(f"{where}.begin", value.get("begin", 0), 0),
        None if end is None else whole(f"{where}.end", end),
        (whole(f"{where}.size", sides[0]), whole(f"{where}.size", sides[1])) if sides else None,
        bool(value.get("channels_first", False)),
    )


def declared_layout(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The layout that the metadata of a simeval server ask for."""
    return {name: Source((field["key"],), field["begin"], field["end"]) for name, field in fields.items()}


def sources(layout: Layout) -> list[Source]:
    """All sources of a layout, nested ones too."""
    found: list[Source] = []
    for value in layout.values():
        found += [value] if isinstance(value, Source) else sources(value)
    return found


def observation_keys(layout: Layout) -> tuple[str, ...]:
    """The observation keys that a layout reads."""
    return tuple(dict.fromkeys(key for source in sources(layout) for key in source.keys))


def fill(layout: Layout, observation: Observation, row: int) -> dict[str, Any]:
    """The message of one row."""
    return {
        name: value.take(observation, row) if isinstance(value, Source) else fill(value, observation, row)
        for name, value in layout.items()
    }


def resize_with_pad(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """``image`` uint8 [H, W, 3] as [height, width, 3]: PIL's bilinear filter, proportions kept, black around it.

    The arithmetic of openpi's ``image_tools.resize_with_pad``.
    """
    from PIL import Image

    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise ConfigError(f"an image to resize is uint8 [H, W, 3]; received {image.dtype} {image.shape}")
    if image.shape[:2] == (height, width):
        return image
    ratio = max(image.shape[1] / width, image.shape[0] / height)
    inner_height, inner_width = int(image.shape[0] / ratio), int(image.shape[1] / ratio)
    resized = Image.fromarray(np.ascontiguousarray(image)).resize(
        (inner_width, inner_height), Image.Resampling.BILINEAR
    )
    padded = np.zeros((height, width, 3), np.uint8)
    top, left = max(0, int((height - inner_height) / 2)), max(0, int((width - inner_width) / 2))
    padded[top : top + inner_height, left : left + inner_width] = np.asarray(resized)
    return padded


@dataclass(frozen=True, slots=True)
class Preset:
    """What openpi's clients for a robot send: a layout as configured, the numbers in an action, and what all mean."""

    observation: Mapping[str, Any]
    action_dim: int
    conventions: Conventions = UNDECLARED


def _image(key: str, **settings: Any) -> dict[str, Any]:
    return {"from": key, "size": 224, **settings}


_ALOHA_CAMERAS: Sequence[str] = ("cam_high", "cam_low", "cam_left_wrist", "cam_right_wrist")

PRESETS: Mapping[str, Preset] = {
    "libero": Preset(
        {
            "observation/image": _image("image_agentview"),
            "observation/wrist_image": _image("image_wrist"),
            "observation/state": "proprio",
        },
        7,
        replace(CONVENTIONS["libero_openpi"], image_size=None, image_processing=None),  # it resizes for itself
    ),
    "droid": Preset(
        {
            "observation/exterior_image_1_left": _image("image_exterior_1_left"),
            "observation/wrist_image_left": _image("image_wrist_left"),
            "observation/joint_position": {"from": "proprio", "begin": 0, "end": 7},
            "observation/gripper_position": {"from": "proprio", "begin": 7, "end": 8},
        },
        8,
    ),
    "aloha": Preset(
        {
            "state": "proprio",
            "images": {camera: _image(f"image_{camera}", channels_first=True) for camera in _ALOHA_CAMERAS},
        },
        14,
    ),
}
"""Those of openpi's ``examples``, at commit 15a9616: ``libero/main.py``, ``droid/main.py``, ``aloha_sim/env.py``."""
