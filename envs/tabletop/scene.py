"""The tabletop scene: its model, the addresses of its parts in the physics state, and a batched view of that state."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import mujoco
import numpy as np

from envs.perturbed.parts import Parts, subtrees

FINGER_HALF_WIDTH = 0.012
FINGER_HALF_THICKNESS = 0.006
FINGER_REACH = (-0.012, 0.056)
"""Lower and upper end of the fingers above the tip [m]."""


def asset(name: str) -> str:
    """The text of one file of ``assets/tabletop``, from a checkout or an installed wheel."""
    return (files("assets") / "tabletop" / name).read_text()


@cache
def layout() -> Mapping[str, Any]:
    """The names, colours and observation layout that the World shares with its policies (``layout.json``)."""
    return json.loads(asset("layout.json"))


_SKINS = {"table": "2d", "floor": "2d", "drawer": "cube", "cabinet": "cube", "toy": "cube"}
"""Material -> the kind of texture that it wears in ``textured_model``."""


def load_model() -> mujoco.MjModel:
    """A fresh model of the scene."""
    return mujoco.MjModel.from_xml_string(asset("scene.xml"))


@cache
def textured_model() -> mujoco.MjModel:
    """The scene with white textures to paint on, for pictures only: copy it to change it."""
    scene = asset("scene.xml")
    white = 'builtin="flat" rgb1="1 1 1" rgb2="1 1 1" width="64" height="64"'
    for material, kind in _SKINS.items():
        plain = f'<material name="{material}"'
        skin = f'<texture name="{material}" type="{kind}" {white}/>'
        scene = scene.replace(plain, f'{skin}{plain} texture="{material}"')
    return mujoco.MjModel.from_xml_string(scene)


def parts_of(model: mujoco.MjModel) -> Parts:
    """The roles in the scene."""
    wearing = {name: np.flatnonzero(model.geom_matid == model.mat(name).id) for name in ("table", "trim", "floor")}
    return Parts(
        focus=(0.0, 0.0, 0.03),
        robot=subtrees(model, [model.body("bridge").id]),
        workspace=((-0.24, -0.29), (0.17, 0.29)),
        table=(*wearing["table"].tolist(), *wearing["trim"].tolist()),
        background=tuple(wearing["floor"].tolist()),
    )


@cache
def scene_hash() -> str:
    """Identifies the assets that numbers depend on."""
    text = "\n".join(asset(name) for name in ("scene.xml", "layout.json", "grammar.json"))
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def field_slices(fields: list[tuple[str, list[int]]]) -> dict[str, tuple[slice, tuple[int, ...]]]:
    """Field name -> (its place in the flat vector, its shape)."""
    slices, offset = {}, 0
    for name, shape in fields:
        size = int(np.prod(shape))
        slices[name] = (slice(offset, offset + size), tuple(shape))
        offset += size
    return slices


@dataclass(frozen=True)
class View:
    """What the physics state of ``n`` slots says about the parts of the scene, in world coordinates."""

    tip: np.ndarray
    """Point between the finger tips [n, 3] m."""
    tip_velocity: np.ndarray
    yaw: np.ndarray
    """[n] rad."""
    fingers: np.ndarray
    """Distance of each finger's inner face from the middle, left and right [n, 2] m."""
    touch: np.ndarray
    """Normal force on each finger [n, 2] N."""
    position: np.ndarray
    """Objects [n, 7, 3] m."""
    quaternion: np.ndarray
    velocity: np.ndarray
    """Linear velocity of the objects [n, 7, 3] m/s."""
    button_depth: np.ndarray
    """How far each button is pressed [n, 3] m."""
    drawer_opening: np.ndarray
    """[n, 2] m."""
    present: np.ndarray
    """Objects that take part [n, 7] bool."""
    contact: np.ndarray
    """Objects that a finger presses [n, 7] bool."""


class Scene:
    """Addresses of the scene's parts in a full physics state (time, qpos, qvel) and the geometry that never changes."""

    def __init__(self, model: mujoco.MjModel):
        names = layout()
        self.model = model
        self.num_objects = len(names["objects"])
        qpos = {name: 1 + int(model.joint(name).qposadr[0]) for name in _joint_names(model)}
        qvel = {name: 1 + model.nq + int(model.joint(name).dofadr[0]) for name in _joint_names(model)}
        first = np.array([qpos[name] for name in names["objects"]])
        self.object_qpos = first[:, None] + np.arange(7)
        self.object_span = _span(self.object_qpos)
        self.object_qvel = np.array([qvel[name] for name in names["objects"]])[:, None] + np.arange(6)
        arm, fingers = ["x", "y", "z"], ["finger_left", "finger_right"]
        self.tip_qpos = np.array([qpos[name] for name in arm])
        self.tip_qvel = np.array([qvel[name] for name in arm])
        self.yaw_qpos = qpos["yaw"]
        self.finger_qpos = np.array([qpos[name] for name in fingers])
        self.button_qpos = np.array([qpos[name] for name in names["buttons"]])
        self.drawer_qpos = np.array([qpos[f"drawer{index}"] for index in range(len(names["drawers"]))])
        self.button_span, self.drawer_span = _span(self.button_qpos), _span(self.drawer_qpos)
        self.home = np.concatenate([[0.0], model.qpos0, np.zeros(model.nv)])
        """The state that the model file describes: every object at its parking place."""
        self.parked = self.home[self.object_qpos]
        self.half_height = np.array([_half_height(model, name) for name in names["objects"]])
        self.radius = np.array([_radius(model, name) for name in names["objects"]])
        """Radius of the circle around each object seen from above [7] m."""
        data = mujoco.MjData(model)
        mujoco.mj_kinematics(model, data)
        up = np.array([0.0, 0.0, 1.0])
        self.button_top = np.stack([data.geom(name).xpos + up * model.geom(name).size[1] for name in names["buttons"]])
        self.drawer_closed = np.stack([data.body(f"drawer{i}").xpos for i in range(len(names["drawers"]))])
        self.handle_closed = np.stack([data.geom(f"drawer{i}_handle").xpos for i in range(len(names["drawers"]))])
        self.ctrl_low, self.ctrl_high = model.actuator_ctrlrange.T.copy()

    def park(self, physics: np.ndarray, present: np.ndarray) -> None:
        """Put objects that take no part back to their parking places, in place: unsupported, they would fall."""
        rows, absent = np.nonzero(~present)
        physics[rows[:, None], self.object_qpos[absent]] = self.parked[absent]
        physics[rows[:, None], self.object_qvel[absent]] = 0.0

    def object_pose(self, physics: np.ndarray) -> np.ndarray:
        """Position and quaternion of each object ``[n, 7, 7]``, a fresh array."""
        return physics[:, self.object_span].copy().reshape(len(physics), self.num_objects, 7)

    def view(self, physics: np.ndarray, sensors: np.ndarray, present: np.ndarray) -> View:
        """What ``physics`` ``[n, nstate]`` and ``sensors`` ``[n, 2]`` say."""
        tip, yaw = physics[:, self.tip_qpos], physics[:, self.yaw_qpos]
        pose = self.object_pose(physics)
        fingers = physics[:, self.finger_qpos]
        return View(
            tip=tip,
            tip_velocity=physics[:, self.tip_qvel],
            yaw=yaw,
            fingers=fingers,
            touch=sensors,
            position=pose[:, :, :3],
            quaternion=pose[:, :, 3:],
            velocity=physics[:, self.object_qvel[:, :3]],
            button_depth=-physics[:, self.button_span],
            drawer_opening=physics[:, self.drawer_span],
            present=present,
            contact=self._contact(tip, yaw, fingers, sensors, pose[:, :, :3], present),
        )

    def _contact(
        self,
        tip: np.ndarray,
        yaw: np.ndarray,
        fingers: np.ndarray,
        touch: np.ndarray,
        position: np.ndarray,
        present: np.ndarray,
    ) -> np.ndarray:
        """A finger that feels a force presses the object nearest to it, if one is within its own clearance."""
        offset = position - tip[:, None]
        cos, sin = np.cos(yaw)[:, None], np.sin(yaw)[:, None]
        along = np.abs(cos * offset[..., 0] + sin * offset[..., 1])
        across = cos * offset[..., 1] - sin * offset[..., 0]
        low, high = FINGER_REACH
        level = (offset[..., 2] > low - self.half_height - 0.004) & (offset[..., 2] < high + self.half_height + 0.004)
        contact = np.zeros(position.shape[:2], dtype=bool)
        everyone = np.arange(len(tip))
        for side, sign in enumerate((1.0, -1.0)):
            middle = sign * (fingers[:, side] + FINGER_HALF_THICKNESS)
            aside = np.maximum(np.abs(across - middle[:, None]) - FINGER_HALF_THICKNESS, 0.0)
            gap = np.hypot(aside, np.maximum(along - FINGER_HALF_WIDTH, 0.0)) - self.radius
            gap = np.where(present & level, gap, np.inf)
            nearest = gap.argmin(axis=1)
            felt = (touch[:, side] > 0) & (gap[everyone, nearest] < 0.003)
            contact[everyone[felt], nearest[felt]] = True
        return contact


def _span(addresses: np.ndarray) -> slice:
    """Neighbouring addresses as a slice, which numpy reads several times faster than a list of them."""
    flat = addresses.reshape(-1)
    if (np.diff(flat) != 1).any():
        raise ValueError(f"the scene's joints of one kind must stand together in scene.xml; found addresses {flat}")
    return slice(int(flat[0]), int(flat[-1]) + 1)


def _joint_names(model: mujoco.MjModel) -> list[str]:
    return [model.joint(index).name for index in range(model.njnt)]


def _half_height(model: mujoco.MjModel, name: str) -> float:
    geom = model.geom(name)
    axis = {mujoco.mjtGeom.mjGEOM_SPHERE: 0, mujoco.mjtGeom.mjGEOM_CYLINDER: 1, mujoco.mjtGeom.mjGEOM_BOX: 2}
    return float(geom.size[axis[mujoco.mjtGeom(int(geom.type[0]))]])


def _radius(model: mujoco.MjModel, name: str) -> float:
    geom = model.geom(name)
    return float(np.hypot(*geom.size[:2]) if geom.type[0] == mujoco.mjtGeom.mjGEOM_BOX else geom.size[0])
