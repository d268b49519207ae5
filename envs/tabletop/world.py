"""The tabletop World: language-conditioned manipulation with a gantry gripper, stepped as one batch."""

import copy
from collections.abc import Mapping, Sequence

import gymnasium
import mujoco
import numpy as np

from envs.mujoco_batch import MujocoBatch
from envs.perturbed import AXES as COMMON_AXES
from envs.perturbed import Change, changes_of, edit, without_looks
from envs.perturbed.placement import Standing, displacement
from envs.tabletop.distractors import add_distractors
from envs.tabletop.episode import fields, judge
from envs.tabletop.pictures import Pictures
from envs.tabletop.scene import Scene, View, field_slices, layout, load_model, parts_of, scene_hash
from envs.tabletop.tasks import TASKS, Draft
from simeval.conventions import Conventions
from simeval.errors import ConfigError, unknown
from simeval.noise import Key
from simeval.settings import names, whole
from simeval.types import Start, TimeStep

VERSION = 1
AXES = COMMON_AXES | {"appearance.distractors"}
SUBSTEPS = 10
LEASH = 0.03
"""How far the commanded tip may run ahead of the real one [m]: it bounds the force on what is in the way."""


class Tabletop(MujocoBatch):
    """A gantry gripper over a table with coloured objects, zones, buttons and two drawers; 20 control steps a second.

    ``task`` is ``"all"``, a task name or several. An action is five numbers in [-1, 1]: displacement of the commanded
    tip along x, y, z (2 cm a step at 1), turn about z (0.2 rad a step at 1), and the gripper: -1 open, +1 close, half
    open between them. Observations: ``state`` (privileged, laid out for all tasks as ``assets/tabletop/layout.json``
    says), ``proprio`` (the robot alone), and ``image_front`` or ``image_wrist``, as ``cameras`` names.

    ``reward`` is dense: the share of stages completed, with the closeness of the next, 1 at success. ``signals``:
    ``object_pose`` [7, 7], ``object_present``, ``contact`` [7] (objects that a finger presses), ``touch`` [2] N,
    ``drawer_opening`` [2] m, ``button_depth`` [3] m, ``stage`` and ``num_stages``, ``distractor_shift`` [m] (the
    farthest that an object outside the goal has been moved). Nothing is terminal: the horizon ends an episode.

    Of a perturbation of the gripper's initial pose, ``roll`` and ``pitch`` change nothing: it cannot lean.
    """

    name = "tabletop"
    perturbation_axes = AXES

    def __init__(
        self,
        task: str | Sequence[str] = "all",
        *,
        num_slots: int = 1,
        cameras: str | Sequence[str] = (),
        image_size: int = 96,
        render_profile: str = "fast",
        threads: int | None = None,
        success_hold: int = 3,
    ):
        chosen = names("task", task)
        for name in chosen:
            if name != "all" and name not in TASKS:
                raise unknown("task of world 'tabletop'", name, ["all", *TASKS])
        if not chosen:
            raise ConfigError(f"world 'tabletop' needs at least one task; available: all, {', '.join(TASKS)}")
        self.tasks = tuple(TASKS) if "all" in chosen else tuple(dict.fromkeys(chosen))
        self.success_hold = whole("success_hold", success_hold)
        self._state_fields = field_slices(layout()["state"])
        self._proprio_size = self._state_fields[layout()["proprio"][-1]][0].stop
        super().__init__(
            load_model(),
            num_slots=num_slots,
            substeps=SUBSTEPS,
            fields=fields(_size(self._state_fields)),
            threads=threads,
        )
        self._scene = Scene(self.models[0])
        self._parts = parts_of(self._scene.model)
        self._pictures = Pictures(self._scene, num_slots, cameras, image_size, render_profile)
        self._scratch: Tabletop | None = None
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (5,), np.float32)
        self.observation_space = gymnasium.spaces.Dict(
            {
                "state": _numbers(_size(self._state_fields)),
                "proprio": _numbers(self._proprio_size),
                **self._pictures.spaces,
            }
        )
        self.conventions = Conventions(
            image_orientation="upright",
            proprio=tuple(layout()["proprio"]),
            action=tuple(layout()["action"]["names"]),
            action_frame="world",
            gripper="plus_closes",
            settings={"image_size": "world.image_size"},
        )
        self._scale = np.array(layout()["action"]["scale"])
        self.dynamics = f"tabletop/{VERSION} scene={scene_hash()} mujoco={mujoco.__version__} substeps={SUBSTEPS}"
        self.fingerprint = f"{self.dynamics} hold={success_hold} {self._pictures.fingerprint}".strip()

    def start(self, task: str, seed: int) -> Start:
        """See ``World.start``."""
        self.check_task(task)
        _, instruction = TASKS[task].begin(_rng(seed, task))
        return Start(task, instruction, seed=seed)

    def horizon(self, task: str) -> int:
        """See ``World.horizon``."""
        self.check_task(task)
        return TASKS[task].horizon

    def render(self, slots: Sequence[int]) -> np.ndarray:
        """The front view of each slot, uint8 ``[len(slots), H, W, 3]``."""
        self._check_running(slots)
        return self._pictures.front(slots, self._records(slots))

    def objection(self, start: Start) -> str | None:
        """See ``World.objection``."""
        self.check_task(start.task)
        if self._scratch is None:
            self._scratch = Tabletop(self.tasks, success_hold=self.success_hold)
        return self._scratch._objection(without_looks(start))

    def close(self) -> None:
        """See ``World.close``."""
        self._pictures.close()
        if self._scratch is not None:
            self._scratch.close()
        super().close()

    def _objection(self, start: Start) -> str | None:
        """What is wrong with ``start``, found out in slot 0."""
        changes = [change for _, change in changes_of(self.name, self.perturbation_axes, start.perturbations)]
        _, hand = _beginning(start, changes)
        held = self._within_reach(hand)
        if (held != hand).any():
            wanted, nearest = (values.round(3).tolist() for values in (hand, held))
            return (
                f"the hand cannot begin at x, y, z, yaw = {wanted} (m, rad); the nearest that it reaches is {nearest}"
            )
        key = Key(start.seed or 0).stream("world").key(0)
        if self.reset([0], [start], [key]).success[0]:
            return "the task is solved at the start"
        standing, nominal = self._standing(start, changes), self._standing(start, [])
        return standing.objection(nominal, self._scene.model, self._parts)

    def _standing(self, start: Start, changes: Sequence[Change]) -> Standing:
        record = np.zeros((), dtype=self.record)
        self._begin(record, start, changes)
        data = mujoco.MjData(self._scene.model)
        data.qpos[:] = record["physics"][self._qpos]
        mujoco.mj_forward(self._scene.model, data)
        return Standing.of(self._scene.model, data, self._parts)

    def _perturb(self, slot: int, changes: Sequence[Change]) -> None:
        moved = [change for change in changes if change.axis == "dynamics"]
        self.models[slot] = self._scene.model
        if moved:
            self.models[slot] = copy.copy(self._scene.model)
            edit(self.models[slot], self._parts, moved)
        self._pictures.dress(slot, changes)

    def _within_reach(self, hand: np.ndarray) -> np.ndarray:
        return np.clip(hand, self._scene.ctrl_low[:4], self._scene.ctrl_high[:4])

    def _begin(self, record: np.ndarray, start: Start, changes: Sequence[Change]) -> None:
        draft, hand = _beginning(start, changes)
        scene, colours = self._scene, list(layout()["colours"])
        physics = record["physics"]
        physics[:] = scene.home
        record["ordered"] = TASKS[start.task].ordered
        record["conditions"][: len(draft.conditions)] = draft.conditions
        record["final"][: len(draft.final)] = draft.final
        record["button_colour"][:] = [colours.index(colour) for colour in draft.buttons]
        for index, (colour, place, yaw) in draft.objects.items():
            record["object_present"][index] = True
            record["object_colour"][index] = colours.index(colour)
            position = [*place, scene.half_height[index] - 0.0002]
            physics[scene.object_qpos[index]] = [*position, np.cos(yaw / 2), 0, 0, np.sin(yaw / 2)]
            record["object_start"][index] = position
        for index, (colour, place) in draft.zones.items():
            record["zone_present"][index] = True
            record["zone_colour"][index] = colours.index(colour)
            record["zone_position"][index, :2] = place
        physics[scene.drawer_qpos] = draft.drawers
        hand, half = self._within_reach(hand), layout()["action"]["max_opening"] / 2
        physics[scene.tip_qpos], physics[scene.yaw_qpos], physics[scene.finger_qpos] = hand[:3], hand[3], half
        record["control"][:] = [*hand, half, half]

    def _settle(self, slots: Sequence[int], records: np.ndarray) -> dict[int, str]:
        self._fill_constants(records)
        hold = np.repeat(records["control"][:, None], SUBSTEPS, axis=1)
        failures: dict[int, str] = {}
        for _ in range(3):
            failures.update(self._simulate(slots, records, hold, [self._scene.model] * len(slots)))
            self._scene.park(records["physics"], records["object_present"])
        records["physics"][:, 0] = 0.0
        return failures

    def _controls(self, records: np.ndarray, actions: np.ndarray) -> np.ndarray:
        scene, before = self._scene, records["control"]
        target = np.empty_like(before)
        target[:, :4] = before[:, :4] + actions[:, :4] * self._scale[:4]
        tip = records["physics"][:, scene.tip_qpos]
        target[:, :3] = np.clip(target[:, :3], tip - LEASH, tip + LEASH)
        target[:, 4:] = (1.0 - actions[:, 4:]) * (0.25 * layout()["action"]["max_opening"])
        np.clip(target, scene.ctrl_low, scene.ctrl_high, out=target)
        ramp = np.minimum(np.arange(1, SUBSTEPS + 1) / (SUBSTEPS - 2), 1.0)
        controls = before[:, None] + (target - before)[:, None] * ramp[:, None]
        controls[:, -1] = target
        return controls

    def _observe(self, records: np.ndarray) -> None:
        self._scene.park(records["physics"], records["object_present"])
        view = self._scene.view(records["physics"], records["sensors"], records["object_present"])
        judge(records, view, self._scene)
        self._fill_state(records, view)

    def _fill_constants(self, records: np.ndarray) -> None:
        """The part of ``state`` that stays as it is all through an episode."""
        known = layout()
        colour, shape = np.eye(len(known["colours"])), np.eye(len(known["shapes"]))
        shapes = [known["shapes"].index(shape) for shape in known["object_shapes"]]
        present, zones = records["object_present"], records["zone_present"]
        self._write(
            records["state"],
            object_present=present,
            object_colour=colour[records["object_colour"]] * present[..., None],
            object_shape=shape[shapes] * present[..., None],
            zone_present=zones,
            zone_position=records["zone_position"],
            zone_colour=colour[records["zone_colour"]] * zones[..., None],
            button_position=np.broadcast_to(self._scene.button_top, (len(records), *self._scene.button_top.shape)),
            button_colour=colour[records["button_colour"]],
        )

    def _fill_state(self, records: np.ndarray, view: View) -> None:
        present = view.present[..., None]
        handle = self._scene.handle_closed - view.drawer_opening[..., None] * [1.0, 0.0, 0.0]
        control = records["control"]
        self._write(
            records["state"],
            tip_position=view.tip,
            tip_velocity=view.tip_velocity,
            yaw=view.yaw,
            opening=view.fingers.sum(axis=1),
            tip_target=control[:, :3],
            yaw_target=control[:, 3],
            opening_target=control[:, 4:].sum(axis=1),
            touch=view.touch,
            object_position=view.position * present,
            object_quaternion=view.quaternion * present,
            object_velocity=view.velocity * present,
            button_depth=view.button_depth,
            drawer_opening=view.drawer_opening,
            drawer_handle=handle,
            stage=records["stage"],
        )

    def _write(self, state: np.ndarray, **values: np.ndarray) -> None:
        for name, value in values.items():
            place, _ = self._state_fields[name]
            target = state[..., place]
            target[...] = np.reshape(value, target.shape)

    def _time_step(
        self, slots: Sequence[int], records: np.ndarray, failures: dict[int, str], looks: Sequence[bool]
    ) -> TimeStep:
        count, physics = len(records), records["physics"]
        state = records["state"].copy()
        return TimeStep(
            {
                "state": state,
                "proprio": state[:, : self._proprio_size].copy(),
                **self._pictures.images(slots, records, looks),
            },
            reward=records["reward"].copy(),
            terminated=np.zeros(count, dtype=bool),
            truncated=np.zeros(count, dtype=bool),
            success=records["success"].copy(),
            signals={
                "object_pose": self._scene.object_pose(physics),
                "drawer_opening": physics[:, self._scene.drawer_span].copy(),
                "button_depth": -physics[:, self._scene.button_span],
                "touch": records["sensors"].copy(),
                **{name: records[name].copy() for name in _SIGNALS},
            },
            failures=failures,
        )


_SIGNALS = ("object_present", "contact", "stage", "num_stages", "distractor_shift")


def _size(fields: Mapping[str, tuple[slice, tuple[int, ...]]]) -> int:
    return max(place.stop for place, _ in fields.values())


def _numbers(size: int) -> gymnasium.spaces.Box:
    return gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32)


def _beginning(start: Start, changes: Sequence[Change]) -> tuple[Draft, np.ndarray]:
    """What an episode begins from, and where its hand is to be: x, y, z [m] and yaw [rad]."""
    if start.seed is None:
        raise ConfigError("a start of world 'tabletop' has a seed (it has no numbered initial states)")
    rng = _rng(start.seed, start.task)
    draft, _ = TASKS[start.task].begin(rng)
    tip, yaw = rng.uniform([-0.12, -0.15, 0.15], [0.08, 0.15, 0.21]), rng.uniform(-0.3, 0.3)
    hand = np.array([*tip, yaw])
    for change in changes:
        if change.axis == "initial_state.layout":
            for index, (colour, place, turned) in draft.objects.items():
                offset, angle = displacement(change, index)
                draft.objects[index] = colour, place + offset, turned + angle
        elif change.axis == "appearance.distractors":
            add_distractors(draft, change)
        elif change.axis == "initial_state.robot":
            hand = hand + [change.amounts[name] for name in ("x", "y", "z", "yaw")]
    return draft, hand


def _rng(seed: int, task: str) -> np.random.Generator:
    return Key(seed).stream("start").event("tabletop", task)
