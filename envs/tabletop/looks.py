"""How a slot of the tabletop looks under perturbations: a canvas and a palette of its own."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import mujoco
import numpy as np

from envs.perturbed import LOOKS, Change, edit
from envs.perturbed.appearance import retexture, shaded
from envs.tabletop.scene import layout, parts_of, textured_model
from simeval.types import content_hash


@dataclass(frozen=True)
class Look:
    """What pictures of one slot are painted on, and with.

    ``name`` says which textures the canvas has, empty for none; ``palette`` [objects, colours, 3] is what each object
    looks like in each colour.
    """

    name: str
    canvas: mujoco.MjModel
    data: mujoco.MjData
    palette: np.ndarray

    @classmethod
    def plain(cls, model: mujoco.MjModel) -> "Look":
        """The look without perturbations, of a scene's ``model``."""
        canvas = copy.copy(model)
        colours = np.array(list(layout()["colours"].values()))
        palette = np.broadcast_to(colours, (len(layout()["objects"]), *colours.shape))
        return cls("", canvas, mujoco.MjData(canvas), palette)

    def changed(self, changes: Sequence[Change]) -> "Look":
        """The look under ``changes``; itself where none of them concerns looks."""
        changes = [change for change in changes if change.axis in LOOKS]
        if not changes:
            return self
        worn = [change for change in changes if change.axis == "appearance"]
        name, canvas = self.name, copy.copy(self.canvas)
        if any(amount for change in worn for key, amount in change.amounts.items() if key.endswith("_texture")):
            name = content_hash([[dict(change.amounts), change.seed] for change in worn])
            canvas = copy.copy(textured_model())
        parts = parts_of(canvas)
        for change in worn:
            retexture(canvas, parts, change, {})
        edit(canvas, parts, changes)
        palette = self.palette.copy()
        for change in worn:
            for index, colours in enumerate(palette):
                palette[index] = shaded(colours, change, index)
        return Look(name, canvas, self.data, palette)
