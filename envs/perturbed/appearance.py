"""Axis ``appearance``: colours, textures and finish of things, of what they stand on, and of what is behind them.

Things are all that is no part of the robot, of the table, of the background or of the bare world.
Of each thing its hue is kept, which instructions name, unless ``object_hue`` turns it; what changes is its shade.
"""

import colorsys
from collections.abc import Iterator

import mujoco
import numpy as np

from envs.perturbed.changes import Change
from envs.perturbed.parts import Parts

_UNSET = np.array([0.5, 0.5, 0.5, 1.0], dtype=np.float32)
"""MuJoCo takes the colour of a geom's material where the geom's own is this."""

_ROWS = 256


def recolour(model: mujoco.MjModel, parts: Parts, change: Change) -> None:
    """Move the colours of every part, and the finish of what has no texture, part of the way towards drawn ones.

    Geoms get colours of their own over those of their materials, so that nothing else of the same material changes.
    """
    for name, geoms in _parts(model, parts):
        for geom in geoms:
            colour = _colour(model, geom)
            if name == "object":
                new = shaded(colour[:3], change, int(model.geom_bodyid[geom]))
            else:
                amount = change.amounts[f"{name}_colour"]
                new = colour[:3] + amount * (_drawn(change, name) - colour[:3])
            if not np.array_equal(new, colour[:3]):
                model.geom_rgba[geom] = [*new, colour[3]]
        amount = change.amounts[f"{name}_texture"]
        if amount:
            for material in {int(model.geom_matid[geom]) for geom in geoms} - {-1}:
                if not textures_of(model, material):
                    shine = change.draws(name, "finish").uniform(0.6, 1.0, 2)
                    for finish, value in zip((model.mat_specular, model.mat_shininess), shine, strict=True):
                        finish[material] += amount * (value - finish[material])


def shaded(colour: np.ndarray, change: Change, thing: int) -> np.ndarray:
    """The colour [..., 3] that thing number ``thing`` has instead: lighter or darker by ``object_colour``.

    Which of the two is drawn for each thing.
    """
    amount, turned = change.amounts["object_colour"], change.amounts["object_hue"]
    colour = np.asarray(colour, dtype=np.float64)
    if amount:
        lighter = change.draws("object", thing).random() < 0.5
        # Half way at most: a colour has to be told.
        colour = colour + 0.6 * amount * ((1.0 if lighter else 0.0) - colour)
    if turned:
        flat = [_turned(row, turned) for row in colour.reshape(-1, 3)]
        colour = np.array(flat).reshape(colour.shape)
    return colour


def retexture(model: mujoco.MjModel, parts: Parts, change: Change, before: dict[int, np.ndarray]) -> None:
    """Blend the textures of every part with drawn patterns, in place; ``before`` keeps what they were, by number.

    What was made to draw the model earlier does not see it: a renderer has its own copy of textures.
    """
    done: set[int] = set()
    for name, geoms in _parts(model, parts):
        amount = change.amounts[f"{name}_texture"]
        if not amount:
            continue
        materials = sorted({int(model.geom_matid[geom]) for geom in geoms} - {-1})
        own = [texture for material in materials for texture in textures_of(model, material)]
        if name == "background":
            own += np.flatnonzero(model.tex_type == mujoco.mjtTexture.mjTEXTURE_SKYBOX).tolist()
        for texture in own:
            if texture not in done:
                done.add(texture)
                picture = pixels(model, texture)
                before.setdefault(texture, picture.copy())
                _blend(picture, amount, change.draws(name, texture))


def textures_of(model: mujoco.MjModel, material: int) -> list[int]:
    """The textures of a material."""
    return sorted({int(texture) for texture in np.atleast_1d(model.mat_texid[material])} - {-1})


def pixels(model: mujoco.MjModel, texture: int) -> np.ndarray:
    """A texture of the model as a view [H, W, C], uint8."""
    height, width, begin = (int(field[texture]) for field in (model.tex_height, model.tex_width, model.tex_adr))
    channels, data = _texture_memory(model, texture)
    return data[begin : begin + height * width * channels].reshape(height, width, channels)


def _texture_memory(model: mujoco.MjModel, texture: int) -> tuple[int, np.ndarray]:
    if mujoco.mj_version() < 320:
        return 3, model.tex_rgb
    return int(model.tex_nchannel[texture]), model.tex_data


def _parts(model: mujoco.MjModel, parts: Parts) -> Iterator[tuple[str, tuple[int, ...]]]:
    others = {*parts.table, *parts.background}
    thing = [geom for geom in range(model.ngeom) if int(model.geom_bodyid[geom]) not in parts.robot | {0}]
    yield "object", tuple(geom for geom in thing if geom not in others)
    yield "table", parts.table
    yield "background", parts.background


def _colour(model: mujoco.MjModel, geom: int) -> np.ndarray:
    material = int(model.geom_matid[geom])
    own = model.geom_rgba[geom]
    return np.array(
        model.mat_rgba[material] if material >= 0 and np.array_equal(own, _UNSET) else own, dtype=np.float64
    )


def _drawn(change: Change, name: str) -> np.ndarray:
    hue, saturation, value = change.draws(name, "colour").uniform([0.0, 0.3, 0.2], [1.0, 0.8, 0.9])
    return np.array(colorsys.hsv_to_rgb(hue, saturation, value))


def _turned(colour: np.ndarray, turns: float) -> tuple[float, float, float]:
    hue, saturation, value = colorsys.rgb_to_hsv(*np.clip(colour, 0.0, 1.0))
    return colorsys.hsv_to_rgb((hue + turns) % 1.0, saturation, value)


def _blend(texture: np.ndarray, amount: float, draws: np.random.Generator) -> None:
    """Blend [H, W, C] with stripes, checks or a grain, of two shades of the texture's own mean colour."""
    height, width, channels = texture.shape
    side = min(height, width)
    kind, cells, bright = int(draws.integers(3)), int(draws.integers(3, 9)), draws.permutation([0.35, 1.5])
    rows, columns = np.arange(height)[:, None] * cells // side, np.arange(width)[None, :] * cells // side
    if kind == 0:
        where = np.broadcast_to((rows % 2).astype(np.float64), (height, width))
    elif kind == 1:
        where = ((rows + columns) % 2).astype(np.float64)
    else:
        grain = draws.random((64, 64))
        where = grain[rows * 8 % 64, columns * 8 % 64]
    colours = min(channels, 3)
    mean = np.array([texture[..., channel].mean() for channel in range(colours)], dtype=np.float32)
    for begin in range(0, height, _ROWS):  # some textures are large
        old = texture[begin : begin + _ROWS, :, :colours]
        shade = (bright[0] + (bright[1] - bright[0]) * where[begin : begin + _ROWS, :, None]).astype(np.float32)
        new = old + np.float32(min(amount, 1.0)) * (mean * shade - old)
        old[...] = np.clip(np.rint(new), 0, 255).astype(np.uint8)
