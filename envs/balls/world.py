"""Bouncing balls in a box seen from the side, under a gravity that differs from start to start; numpy alone."""

from collections.abc import Iterable, Sequence

import gymnasium
import numpy as np

from envs.balls.physics import RADIUS, distance, substep
from envs.balls.pictures import PALETTE, ZONE_RADIUS, draw
from envs.gravities import Gravities
from simeval.conventions import Conventions
from simeval.errors import ConfigError, SnapshotError, UnsupportedError, unknown
from simeval.noise import Key, StepKey
from simeval.settings import image_side, names, slot_count, whole
from simeval.types import Snapshot, Start, TimeStep
from simeval.world import World

VERSION = 1
CONTROL_DT, SUBSTEPS = 0.05, 10
MAX_FORCE = 10.0
"""On the first ball, along each axis [N]."""
MAX_BALLS = len(PALETTE)
INSTRUCTION = "bring the red ball into the ring and keep it there"
_CAMERAS = ("side",)
_PICTURE_SIZE = 256
_PLACES = 4
"""The box is parted into so many columns and rows: no two balls begin in the same part, so that none overlap."""


class Balls(World):
    """Balls of equal mass in a box, x to the right and y up [m]; 20 control steps a second; an action pushes the first.

    An action is two numbers in [-1, 1]: the force on the first ball along x and y, in 10 N. Walls and balls throw
    back a share ``restitution`` of the speed at which they are met; there is no friction and nothing turns. The
    gravity of a start is drawn from ``gravities`` (see ``Gravities``) by its seed, and its layout independently of it.

    Observations: ``state``, the positions [m] and velocities [m/s] of the balls and the middle of the ring [m], as
    ``[x, y] * balls + [vx, vy] * balls + [x, y]``; ``gravity`` [1] m/s²; and ``image_side``, with ``cameras=["side"]``.
    The task ``bounce``: the first ball's middle within 12 cm of the ring's, for ``success_hold`` steps. ``reward`` is
    1 there and falls by 1 a metre outside. ``signals``: ``ball_position`` and ``ball_velocity`` [balls, 2], ``energy``
    (kinetic and potential [J]) and ``gravity``, in float64. Nothing is terminal: the horizon ends an episode.
    """

    name = "balls"
    tasks = ("bounce",)

    def __init__(
        self,
        num_slots: int = 1,
        *,
        balls: int = 3,
        gravities: float | Iterable[float] = (1.0, 4.0),
        restitution: float = 0.9,
        cameras: str | Sequence[str] = (),
        image_size: int = 64,
        success_hold: int = 10,
    ):
        self.num_slots = slot_count(num_slots)
        self.success_hold = whole("success_hold", success_hold)
        self._balls = whole("balls", balls)
        if self._balls > MAX_BALLS:
            raise ConfigError(f"world 'balls' has at most {MAX_BALLS} balls; received {balls}")
        if not isinstance(restitution, int | float) or not 0 <= restitution <= 1:
            raise ConfigError(f"restitution is a number from 0 to 1; received {restitution!r}")
        self._restitution = float(restitution)
        self._gravities = Gravities.of(gravities)
        self._cameras = names("cameras", cameras)
        for camera in self._cameras:
            if camera not in _CAMERAS:
                raise unknown("camera of world 'balls'", camera, _CAMERAS)
        self._size = image_side(image_size, least=8)
        shape = (self._size, self._size, 3)
        numbers = {"state": 4 * self._balls + 2, "gravity": 1}
        self.observation_space = gymnasium.spaces.Dict(
            {name: gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32) for name, size in numbers.items()}
            | {f"image_{camera}": gymnasium.spaces.Box(0, 255, shape, np.uint8) for camera in self._cameras}
        )
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.control_dt = CONTROL_DT
        self.conventions = Conventions(
            image_orientation="upright",
            action=("force_x", "force_y"),
            action_frame="world",
            settings={"image_size": "world.image_size"},
        )
        self.dynamics = f"balls/{VERSION} balls={self._balls} restitution:{self._restitution:g} substeps={SUBSTEPS}"
        pictures = f"cameras={','.join(self._cameras)} size={self._size}" if self._cameras else ""
        self.fingerprint = f"{self.dynamics} gravities={self._gravities} hold={success_hold} {pictures}".strip()
        self._record = np.dtype(
            [
                ("position", np.float64, (self._balls, 2)),
                ("velocity", np.float64, (self._balls, 2)),
                ("zone", np.float64, (2,)),
                ("gravity", np.float64),
            ]
        )
        self._slots = np.zeros(num_slots, dtype=self._record)
        self._running = np.zeros(num_slots, dtype=bool)

    def start(self, task: str, seed: int) -> Start:
        """See ``World.start``."""
        self.check_task(task)
        return Start(task, INSTRUCTION, seed=seed)

    def horizon(self, task: str) -> int:
        """See ``World.horizon``."""
        self.check_task(task)
        return 200

    def objection(self, start: Start) -> str | None:
        """See ``World.objection``."""
        self.check_task(start.task)
        gravity = self._beginning(start)["gravity"]
        if gravity >= MAX_FORCE:
            return f"the force of {MAX_FORCE:g} N cannot hold the ball up against a gravity of {gravity:.3g} m/s²"
        return None

    def reset(self, slots: Sequence[int], starts: Sequence[Start], keys: Sequence[StepKey]) -> TimeStep:
        """See ``World.reset``."""
        self.check_slots(slots)
        for start in starts:
            self.check_task(start.task)
        records = np.zeros(len(slots), dtype=self._record)
        for row, start in enumerate(starts):
            records[row] = self._beginning(start)
        return self._commit(slots, records, [True] * len(slots))

    def step(self, slots: Sequence[int], actions: np.ndarray, keys: Sequence[StepKey]) -> TimeStep:
        """See ``World.step``."""
        return self.advance(slots, actions, keys, [True] * len(slots))

    def advance(
        self, slots: Sequence[int], actions: np.ndarray, keys: Sequence[StepKey], looks: Sequence[bool]
    ) -> TimeStep:
        """See ``World.advance``."""
        self._check_running(slots)
        self.check_actions(slots, actions, keys)
        records = self._slots[list(slots)]
        position, velocity = records["position"].copy(), records["velocity"].copy()
        acceleration = np.zeros_like(position)
        acceleration[..., 1] = -records["gravity"][:, None]
        acceleration[:, 0] += np.asarray(actions, dtype=np.float64) * MAX_FORCE
        for _ in range(SUBSTEPS):
            position, velocity = substep(position, velocity, acceleration, self._restitution, CONTROL_DT / SUBSTEPS)
        records["position"], records["velocity"] = position, velocity
        return self._commit(slots, records, looks)

    def snapshot(self, slots: Sequence[int]) -> list[Snapshot]:
        """See ``World.snapshot``."""
        self._check_running(slots)
        return [Snapshot(self.snapshot_fingerprint, {"record": self._slots[slot].tobytes()}) for slot in slots]

    def restore(self, slots: Sequence[int], snapshots: Sequence[Snapshot]) -> TimeStep:
        """See ``World.restore``."""
        self.check_slots(slots)
        self.check_snapshots(snapshots)
        for snapshot in snapshots:
            if len(snapshot.state["record"]) != self._record.itemsize:
                raise SnapshotError(f"a snapshot of world 'balls' holds {self._record.itemsize} bytes a slot")
        data = bytearray().join(snapshot.state["record"] for snapshot in snapshots)
        return self._commit(slots, np.frombuffer(data, dtype=self._record), [True] * len(slots))

    def render(self, slots: Sequence[int]) -> np.ndarray:
        """The box of each slot from the side, uint8 ``[len(slots), H, W, 3]``."""
        self._check_running(slots)
        records = self._slots[list(slots)]
        return draw(records["position"], records["zone"], max(self._size, _PICTURE_SIZE))

    def _beginning(self, start: Start) -> np.ndarray:
        if start.seed is None:
            raise ConfigError("a start of world 'balls' has a seed (it has no numbered initial states)")
        if start.perturbations:
            raise UnsupportedError(f"world 'balls' has no perturbation axis {start.perturbations[0].axis!r}")
        rng = Key(start.seed).stream("start").event("balls", start.task)
        record = np.zeros((), dtype=self._record)
        record["gravity"] = self._gravities.of_start("balls", start.seed)
        record["zone"] = rng.uniform([0.2, 0.3], [0.8, 0.85])
        places = rng.permutation(_PLACES**2)
        part, room = 1.0 / _PLACES, 1.0 / _PLACES - 2 * RADIUS
        corners = np.stack([places % _PLACES, places // _PLACES], axis=1) * part + RADIUS
        positions = corners + room * rng.random((_PLACES**2, 2))
        outside = np.flatnonzero(distance(positions - record["zone"]) > ZONE_RADIUS + RADIUS)
        first, *others = np.concatenate([outside[:1], np.delete(np.arange(_PLACES**2), outside[0])])
        record["position"] = positions[[first, *others[: self._balls - 1]]]
        record["velocity"] = rng.uniform(-1.0, 1.0, (MAX_BALLS, 2))[: self._balls]
        return record

    def _commit(self, slots: Sequence[int], records: np.ndarray, looks: Sequence[bool]) -> TimeStep:
        self._slots[list(slots)] = records
        self._running[list(slots)] = True
        count, position, velocity = len(records), records["position"], records["velocity"]
        gravity, zone = records["gravity"], records["zone"]
        away = distance(position[:, 0] - zone)
        state = np.concatenate([position.reshape(count, -1), velocity.reshape(count, -1), zone], axis=1)
        images = {}
        for camera in self._cameras:
            images[f"image_{camera}"] = np.zeros((count, self._size, self._size, 3), np.uint8)
            rows = np.flatnonzero(looks)
            images[f"image_{camera}"][rows] = draw(position[rows], zone[rows], self._size)
        energy = np.zeros(count)
        for ball in range(self._balls):
            speed = velocity[:, ball]
            energy += 0.5 * (speed[:, 0] ** 2 + speed[:, 1] ** 2) + gravity * position[:, ball, 1]
        return TimeStep(
            {"state": state.astype(np.float32), "gravity": gravity[:, None].astype(np.float32), **images},
            reward=1.0 - np.maximum(away - ZONE_RADIUS, 0.0),
            terminated=np.zeros(count, dtype=bool),
            truncated=np.zeros(count, dtype=bool),
            success=away <= ZONE_RADIUS,
            signals={
                "ball_position": position.copy(),
                "ball_velocity": velocity.copy(),
                "energy": energy,
                "gravity": gravity.copy(),
            },
        )

    def _check_running(self, slots: Sequence[int]) -> None:
        self.check_slots(slots)
        for slot in slots:
            if not self._running[slot]:
                raise RuntimeError(f"world 'balls': slot {slot} has no episode; reset or restore it first")
