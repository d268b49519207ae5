"""A Python simulator around MuJoCo whose snapshot is its complete state: what its adapters share."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import mujoco
import numpy as np

from envs.capture import Capture
from envs.rendering import RendererPool
from simeval.errors import unknown
from simeval.simulator import Simulator, SimulatorStep

_PICTURE_SIZE = 256


@dataclass(frozen=True)
class Views:
    """The cameras whose pictures are observations ``image_<camera>``, their side [pixels], and what draws them."""

    cameras: tuple[str, ...]
    size: int
    renderers: RendererPool


class CapturedSimulator(Simulator):
    """The state of ``model`` and ``data``, and of the Python objects reachable from ``roots``; see ``envs.capture``.

    ``name`` tells models apart for the renderers. ``modules`` and ``exclude`` say which objects are captured, and
    ``derived`` which of the arrays that MuJoCo derives. What the simulator holds when this is built is its baseline:
    build it alike in every process. An adapter calls :meth:`rewind` when an episode begins, and passes what it returns
    through :meth:`show`.
    """

    def __init__(
        self,
        name: str,
        model: mujoco.MjModel,
        data: mujoco.MjData,
        roots: Mapping[str, object],
        modules: Sequence[str],
        exclude: Sequence[str],
        views: Views,
        derived: Sequence[str] = ("",),
    ):
        self.model, self.data = model, data
        self._name = name
        self._views = views
        existing = camera_names(model)
        for camera in views.cameras:
            if camera not in existing:
                raise unknown(f"camera of {name!r}", camera, existing)
        # Capture finds contacts again from the poses, which a fresh MjData does not have yet.
        mujoco.mj_forward(model, data)
        self.capture = Capture(model, data, roots, modules, exclude, derived)
        self._pristine = self.capture.save()
        self._terrain: np.ndarray = model.hfield_data
        self._flat = self._terrain.copy()
        self._shown: SimulatorStep

    def rewind(self) -> None:
        """Return to the baseline."""
        self._terrain[:] = self._flat
        self.capture.load(self._pristine)

    def show(self, step: SimulatorStep) -> SimulatorStep:
        """``step`` as it is returned: with the pictures drawn now, and remembered for a snapshot."""
        self._shown = step
        views = self._views
        if not views.cameras:
            return step
        images = {f"image_{camera}": self.draw(camera, views.size) for camera in views.cameras}
        return replace(step, observation={**step.observation, **images})

    def snapshot(self) -> Mapping[str, Any]:
        """The complete state, and what was shown of it; pictures are drawn again."""
        shown = self._shown
        return {
            "capture": self.capture.save(),
            "terrain": None if np.array_equal(self._terrain, self._flat) else self._terrain.copy(),
            "observation": {key: value.copy() for key, value in shown.observation.items()},
            "reward": shown.reward,
            "flags": (shown.terminated, shown.truncated, shown.success),
        }

    def restore(self, state: Mapping[str, Any]) -> SimulatorStep:
        """Put a state back; nothing is simulated."""
        self._terrain[:] = self._flat if state["terrain"] is None else state["terrain"]
        self.capture.load(state["capture"])
        self.resume()
        observation = {key: value.copy() for key, value in state["observation"].items()}
        terminated, truncated, success = state["flags"]
        return self.show(SimulatorStep(observation, state["reward"], terminated, truncated, success, self.signals()))

    def resume(self) -> None:
        """Mend what the capture does not reach, after a state was put back."""

    def signals(self) -> Mapping[str, np.ndarray]:
        """``qpos`` [nq] and ``qvel`` [nv]."""
        return {"qpos": self.data.qpos, "qvel": self.data.qvel}

    def picture_camera(self) -> str | mujoco.MjvCamera:
        """The camera of :meth:`render`: a free one, unless an adapter knows better."""
        camera = mujoco.MjvCamera()
        mujoco.mjv_defaultFreeCamera(self.model, camera)
        return camera

    def render(self) -> np.ndarray:
        """A picture for people by :meth:`picture_camera`."""
        return self.draw(self.picture_camera(), _PICTURE_SIZE)

    def draw(self, camera: str | mujoco.MjvCamera, size: int) -> np.ndarray:
        """A picture, uint8 ``[size, size, 3]``, of the bodies where they are."""
        # A renderer keeps the height field that it was made with.
        terrain = hashlib.blake2b(self._terrain.tobytes(), digest_size=8).hexdigest() if self._terrain.size else ""
        return self._views.renderers.render(self._name + terrain, self.model, self.data, camera, size)


def camera_names(model: mujoco.MjModel) -> list[str]:
    """The names of a model's cameras."""
    return [model.camera(index).name for index in range(model.ncam)]
