"""Pictures of tabletop slots: each episode's colours and zones painted on one canvas copy of the model."""

import copy
from collections.abc import Sequence

import gymnasium
import mujoco
import numpy as np

from envs.rendering import Renderer, check_profile
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
    """Draws records of the tabletop. Renderers are made when the first picture is asked for."""

    def __init__(self, scene: Scene, cameras: str | Sequence[str], size: int, profile: str):
        configured = names("cameras", cameras)
        for camera in configured:
            if camera not in CAMERAS:
                raise unknown("camera of world 'tabletop'", camera, CAMERAS)
        self._scene = scene
        self._cameras = tuple(dict.fromkeys(configured))
        self._size = image_side(size, least=8)
        self._profile = check_profile(profile)
        self._renderers: dict[int, Renderer] = {}
        self._canvas = copy.copy(scene.model)
        self._data = mujoco.MjData(self._canvas)
        known = layout()
        self._palette = np.array(list(known["colours"].values()))
        self._object_geoms = np.array([self._canvas.geom(name).id for name in known["objects"]])
        self._zone_geoms = np.array([self._canvas.geom(name).id for name in known["zones"]])
        self._zone_bodies = np.array([self._canvas.body(name).id for name in known["zones"]])
        self._button_geoms = np.array([self._canvas.geom(name).id for name in known["buttons"]])

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

    def images(self, records: np.ndarray, looks: Sequence[bool]) -> dict[str, np.ndarray]:
        """Observation key -> uint8 ``[n, size, size, 3]`` of ``records``, for the configured cameras.

        Rows without ``looks`` are left black.
        """
        if not self._cameras:
            return {}
        shape = (len(records), self._size, self._size, 3)
        images = {f"image_{camera}": np.zeros(shape, np.uint8) for camera in self._cameras}
        renderer = self._renderer(self._size)
        for row in np.flatnonzero(looks):
            self._paint(records[row])
            for camera in self._cameras:
                images[f"image_{camera}"][row] = renderer.render(self._data, camera, self._canvas)
        return images

    def front(self, records: np.ndarray) -> np.ndarray:
        """The front view of ``records`` for people, uint8 ``[n, H, W, 3]``."""
        size = max(self._size, PICTURE_SIZE)
        pictures = np.zeros((len(records), size, size, 3), np.uint8)
        for row, record in enumerate(records):
            self._paint(record)
            pictures[row] = self._renderer(size).render(self._data, "front", self._canvas)
        return pictures

    def close(self) -> None:
        """Free the renderers."""
        for renderer in self._renderers.values():
            renderer.close()
        self._renderers = {}

    def _renderer(self, size: int) -> Renderer:
        if size not in self._renderers:
            self._renderers[size] = Renderer(self._scene.model, size, self._profile)
        return self._renderers[size]

    def _paint(self, record: np.ndarray) -> None:
        canvas = self._canvas
        rgba = np.ones((len(self._palette), 4))
        rgba[:, :3] = self._palette
        present = record["object_present"]
        canvas.geom_rgba[self._object_geoms] = np.where(present[:, None], rgba[record["object_colour"]], _HIDDEN)
        canvas.geom_rgba[self._button_geoms] = rgba[record["button_colour"]]
        zones = record["zone_present"]
        pale = 1.0 - _ZONE_STRENGTH * (1.0 - rgba[record["zone_colour"]])
        canvas.geom_rgba[self._zone_geoms] = np.where(zones[:, None], pale, _HIDDEN)
        canvas.body_pos[self._zone_bodies, :2] = record["zone_position"][:, :2]
        self._data.qpos = record["physics"][1 : 1 + canvas.nq]
        mujoco.mj_kinematics(canvas, self._data)
        mujoco.mj_camlight(canvas, self._data)
