"""Pictures of tabletop slots: each episode's colours and zones painted on one canvas copy of the model."""

from collections.abc import Sequence

import gymnasium
import mujoco
import numpy as np

from envs.perturbed import Change
from envs.rendering import RendererPool, check_profile
from envs.tabletop.looks import Look
from envs.tabletop.scene import Scene, layout
from simeval.errors import unknown
from simeval.settings import image_side, names

CAMERAS = ("front", "wrist")
PICTURE_SIZE = 256
"""Side of the pictures for people when no camera is configured [pixels]."""

_ZONE_STRENGTH = 0.6
"""How much of its colour a zone shows, the rest being white: a pale disc under a strong object."""
_HIDDEN = np.array([0.0, 0.0, 0.0, 0.0])


class Pictures:
    """Draws records of the tabletop. Renderers are made when the first picture is asked for.

    Each of ``num_slots`` slots has a look of its own.
    """

    def __init__(self, scene: Scene, num_slots: int, cameras: str | Sequence[str], size: int, profile: str):
        configured = names("cameras", cameras)
        for camera in configured:
            if camera not in CAMERAS:
                raise unknown("camera of world 'tabletop'", camera, CAMERAS)
        self._cameras = tuple(dict.fromkeys(configured))
        self._size = image_side(size, least=8)
        self._profile = check_profile(profile)
        self._renderers = RendererPool(self._profile, 2 * num_slots + 2)
        self._plain = Look.plain(scene.model)
        self._looks = [self._plain] * num_slots
        known, model = layout(), scene.model
        self._palette = np.array(list(known["colours"].values()))
        self._object_geoms = np.array([model.geom(name).id for name in known["objects"]])
        self._zone_geoms = np.array([model.geom(name).id for name in known["zones"]])
        self._zone_bodies = np.array([model.body(name).id for name in known["zones"]])
        self._button_geoms = np.array([model.geom(name).id for name in known["buttons"]])

    @property
    def spaces(self) -> dict[str, gymnasium.spaces.Box]:
        """Observation space of each configured camera, by observation key."""
        shape = (self._size, self._size, 3)
        return {f"image_{camera}": gymnasium.spaces.Box(0, 255, shape, np.uint8) for camera in self._cameras}

    @property
    def fingerprint(self) -> str:
        """The settings that images depend on; empty without cameras."""
        if not self._cameras:
            return ""
        return f"cameras={','.join(self._cameras)} size={self._size} profile={self._profile}"

    def dress(self, slot: int, changes: Sequence[Change]) -> None:
        """Let a slot look as it does under ``changes`` from now on."""
        self._looks[slot] = self._plain.changed(changes)

    def images(self, slots: Sequence[int], records: np.ndarray, looks: Sequence[bool]) -> dict[str, np.ndarray]:
        """Observation key -> uint8 ``[n, size, size, 3]`` of ``records`` in ``slots``, for the configured cameras.

        Rows without ``looks`` are left black.
        """
        if not self._cameras:
            return {}
        shape = (len(records), self._size, self._size, 3)
        images = {f"image_{camera}": np.zeros(shape, np.uint8) for camera in self._cameras}
        for row in np.flatnonzero(looks):
            look = self._looks[slots[row]]
            self._paint(look, records[row])
            for camera in self._cameras:
                images[f"image_{camera}"][row] = self._draw(look, camera, self._size)
        return images

    def front(self, slots: Sequence[int], records: np.ndarray) -> np.ndarray:
        """The front view of ``records`` in ``slots`` for people, uint8 ``[n, H, W, 3]``."""
        size = max(self._size, PICTURE_SIZE)
        pictures = np.zeros((len(records), size, size, 3), np.uint8)
        for row, record in enumerate(records):
            look = self._looks[slots[row]]
            self._paint(look, record)
            pictures[row] = self._draw(look, "front", size)
        return pictures

    def close(self) -> None:
        """Free the renderers."""
        self._renderers.close()

    def _draw(self, look: Look, camera: str, size: int) -> np.ndarray:
        return self._renderers.render(look.name, look.canvas, look.data, camera, size)

    def _paint(self, look: Look, record: np.ndarray) -> None:
        canvas, data = look.canvas, look.data
        rgba = np.ones((len(self._palette), 4))
        rgba[:, :3] = self._palette
        present = record["object_present"]
        objects = np.ones((len(present), 4))
        objects[:, :3] = look.palette[np.arange(len(present)), record["object_colour"]]
        canvas.geom_rgba[self._object_geoms] = np.where(present[:, None], objects, _HIDDEN)
        canvas.geom_rgba[self._button_geoms] = rgba[record["button_colour"]]
        zones = record["zone_present"]
        pale = 1.0 - _ZONE_STRENGTH * (1.0 - rgba[record["zone_colour"]])
        canvas.geom_rgba[self._zone_geoms] = np.where(zones[:, None], pale, _HIDDEN)
        canvas.body_pos[self._zone_bodies, :2] = record["zone_position"][:, :2]
        data.qpos = record["physics"][1 : 1 + canvas.nq]
        mujoco.mj_kinematics(canvas, data)
        mujoco.mj_camlight(canvas, data)
