"""The complete state of a Python simulator around MuJoCo, taken and put back: the engine's and its objects'.

A capture is built once, on a simulator in a reproducible state (constructed with a fixed seed): its *baseline*. A state
is what differs from the baseline, as plain nested data, so that it loads into another simulator constructed alike, in
any process.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import mujoco
import numpy as np

from envs.object_capture import ObjectCapture
from simeval.errors import SnapshotError

_ASSETS = ("mesh", "tex_", "hfield_", "skin_", "bvh_", "oct_", "name", "paths", "text_", "tuple_", "numeric_")
_STATE = frozenset(
    (
        "qpos",
        "qvel",
        "act",
        "qacc_warmstart",
        "ctrl",
        "qfrc_applied",
        "xfrc_applied",
        "mocap_pos",
        "mocap_quat",
        "userdata",
        "plugin_state",
    )
)
"""Arrays of ``MjData`` that are in the integration state already."""


class Capture:
    """State of one simulator: its ``MjModel`` and ``MjData``, and the Python objects reachable from ``roots``.

    ``modules`` are the module prefixes whose objects are captured (``("robosuite",)``); ``exclude`` are prefixes of
    ``module.Class`` names below them that are not (renderers). See ``PhysicsCapture`` and ``ObjectCapture``.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        data: mujoco.MjData,
        roots: Mapping[str, object],
        modules: Sequence[str],
        exclude: Sequence[str] = (),
    ):
        self.physics = PhysicsCapture(model, data)
        self.objects = ObjectCapture(roots, modules, exclude, memory=self.physics.memory)

    def save(self) -> dict[str, Any]:
        """The state now, as plain data that shares no memory with the simulator."""
        return {"physics": self.physics.save(), "objects": self.objects.save()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Put a saved state back; ``SnapshotError`` where it is of a simulator of another build."""
        self.physics.load(state["physics"])
        self.objects.load(state["objects"])


class PhysicsCapture:
    """The state of an ``MjData``, what MuJoCo has derived from it, and the model fields changed since the baseline.

    Derived quantities lag one substep behind the state after ``mj_step``; they are put back as they were, not computed
    anew. Contacts are found again from the restored poses, which gives the same ones; constraint forces (``efc_*``)
    are gone until the next step. Meshes, textures, height fields and names of the model are taken to be constant.
    """

    def __init__(self, model: mujoco.MjModel, data: mujoco.MjData):
        self._model, self._data = model, data
        self._spec = int(mujoco.mjtState.mjSTATE_INTEGRATION)
        self._size = mujoco.mj_stateSize(model, self._spec)
        data_fields = _arrays(data)
        # One buffer begins with these; arrays in the arena (contacts, constraints) move and change size at every step.
        start = _address(data_fields["qpos"] if model.nq else data_fields["xfrc_applied"])
        fixed = {n: a for n, a in data_fields.items() if 0 <= _address(a) - start < data.nbuffer}
        floats = {n: a for n, a in fixed.items() if a.dtype == np.float64 and n not in _STATE}
        self._derived = [a for _, a in sorted({**floats, "energy": data_fields["energy"]}.items())]
        self._ends = np.cumsum([a.size for a in self._derived])
        options = {f"opt.{n}": a for n, a in _arrays(model.opt).items()}
        lights = {f"vis.headlight.{n}": a for n, a in _arrays(model.vis.headlight).items()}
        model_fields = _arrays(model)
        watched = {n: a for n, a in model_fields.items() if not n.startswith(_ASSETS)} | options | lights
        self._fields = dict(sorted(watched.items()))
        self._base = [(name, field, field.tobytes()) for name, field in self._fields.items()]
        self._options = {n: getattr(model.opt, n) for n in _scalars(model.opt)}
        self.memory = {f"data.{n}": a for n, a in fixed.items()} | {f"model.{n}": a for n, a in model_fields.items()}

    def save(self) -> dict[str, Any]:
        """The state now."""
        state = np.empty(self._size)
        mujoco.mj_getState(self._model, self._data, state, self._spec)
        option = self._model.opt
        return {
            "state": state,
            "derived": np.concatenate([field.ravel() for field in self._derived]),
            "model": {name: field.copy() for name, field, base in self._base if field.tobytes() != base},
            "options": {name: v for name, base in self._options.items() if (v := getattr(option, name)) != base},
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        """Put a saved state back."""
        if saved["state"].size != self._size or saved["derived"].size != self._ends[-1]:
            raise SnapshotError(
                f"a state of {saved['state'].size} + {saved['derived'].size} numbers does not fit this MuJoCo model, "
                f"which has {self._size} + {self._ends[-1]}; restore it into the task it was taken in"
            )
        changed = saved["model"]
        for name, field, base in self._base:
            if name in changed:
                field[...] = changed[name]
            elif field.tobytes() != base:
                field[...] = np.frombuffer(base, field.dtype).reshape(field.shape)
        for name, value in {**self._options, **saved["options"]}.items():
            if getattr(self._model.opt, name) != value:
                setattr(self._model.opt, name, value)
        mujoco.mj_setState(self._model, self._data, saved["state"], self._spec)
        begin, derived = 0, saved["derived"]
        for field, end in zip(self._derived, self._ends, strict=True):
            field[...] = derived[begin:end].reshape(field.shape)
            begin = end
        mujoco.mj_collision(self._model, self._data)


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def _arrays(struct: object) -> dict[str, np.ndarray]:
    found = ((name, getattr(struct, name)) for name in dir(struct) if not name.startswith("_"))
    return {name: value for name, value in found if isinstance(value, np.ndarray) and value.size}


def _scalars(struct: object) -> list[str]:
    return [n for n in dir(struct) if not n.startswith("_") and isinstance(getattr(struct, n), (int, float))]
