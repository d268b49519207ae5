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

VERSION = 2
"""Of what a capture saves; part of the dynamics of a World that snapshots by one."""

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
POSES = (
    "xpos",
    "xquat",
    "xmat",
    "xipos",
    "ximat",
    "geom_x",
    "site_x",
    "cam_x",
    "light_x",
    "ten_",
    "wrap_",
    "flexvert_",
)
"""Prefixes of the derived arrays that say where things are: enough for a simulator that derives all others anew before
it reads them, as ``mj_step`` and ``mj_forward`` do."""
_ALIGNMENT = 64
"""Bytes at which MuJoCo aligns the arrays of a buffer: those closer than this are neighbours."""


class Capture:
    """State of one simulator: its ``MjModel`` and ``MjData``, and the Python objects reachable from ``roots``.

    ``modules`` are the module prefixes whose objects are captured (``("robosuite",)``); ``exclude`` are prefixes of
    ``module.Class`` names below them that are not (renderers); ``derived`` are prefixes of the names of derived arrays
    that are kept. See ``PhysicsCapture`` and ``ObjectCapture``.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        data: mujoco.MjData,
        roots: Mapping[str, object],
        modules: Sequence[str],
        exclude: Sequence[str] = (),
        derived: Sequence[str] = ("",),
    ):
        self.physics = PhysicsCapture(model, data, derived)
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
    anew: those whose names begin with one of ``derived`` (all by default; ``POSES`` where a simulator's next step reads
    no others before MuJoCo writes them). Contacts are found again from the restored poses, which gives the same ones;
    constraint forces (``efc_*``) are gone until the next step. Meshes, textures, height fields and names of the model
    are taken to be constant.
    """

    def __init__(self, model: mujoco.MjModel, data: mujoco.MjData, derived: Sequence[str] = ("",)):
        self._model, self._data = model, data
        self._spec = int(mujoco.mjtState.mjSTATE_INTEGRATION)
        self._size = mujoco.mj_stateSize(model, self._spec)
        data_fields = _arrays(data)
        # One buffer begins with these; arrays in the arena (contacts, constraints) move and change size at every step.
        start = _address(data_fields["qpos"] if model.nq else data_fields["xfrc_applied"])
        fixed = {n: a for n, a in data_fields.items() if 0 <= _address(a) - start < data.nbuffer}
        kept = {n: a for n, a in fixed.items() if a.dtype == np.float64 and n not in _STATE} | {"energy": data.energy}
        self._derived = _spans({n: a for n, a in kept.items() if n.startswith(tuple(derived))}, np.float64)
        self._ends = np.cumsum([0, *(span.memory.size for span in self._derived)]).tolist()
        model_fields = _arrays(model)
        watched = {n: a for n, a in model_fields.items() if not n.startswith(_ASSETS)}
        watched |= {f"opt.{n}": a for n, a in _arrays(model.opt).items()}
        watched |= {f"vis.headlight.{n}": a for n, a in _arrays(model.vis.headlight).items()}
        self._fields = watched
        self._watched = _spans(watched, np.uint8)
        # The solver scales its tolerance by the mean inertia, which goes with the masses.
        self._owners = dict.fromkeys(_scalars(model.opt), model.opt) | {"meaninertia": model.stat}
        self._options = {name: getattr(owner, name) for name, owner in self._owners.items()}
        self.memory = {f"data.{n}": a for n, a in fixed.items()} | {f"model.{n}": a for n, a in model_fields.items()}

    def save(self) -> dict[str, Any]:
        """The state now."""
        state = np.empty(self._size)
        mujoco.mj_getState(self._model, self._data, state, self._spec)
        changed = [name for span in self._watched for name in span.changed()]
        options = {name: getattr(owner, name) for name, owner in self._owners.items()}
        return {
            "state": state,
            "derived": np.concatenate([span.memory for span in self._derived]),
            "model": {name: self._fields[name].copy() for name in changed},
            "options": {name: value for name, value in options.items() if value != self._options[name]},
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        """Put a saved state back."""
        state, derived = saved["state"], saved["derived"]
        if state.size != self._size or derived.size != self._ends[-1]:
            raise SnapshotError(
                f"a state of {state.size} + {derived.size} numbers does not fit this MuJoCo model, "
                f"which has {self._size} + {self._ends[-1]}; restore it into the task it was taken in"
            )
        for span in self._watched:
            span.memory[:] = span.base
        for name, value in saved["model"].items():
            self._fields[name][...] = value
        for name, value in {**self._options, **saved["options"]}.items():
            owner = self._owners[name]
            if getattr(owner, name) != value:
                setattr(owner, name, value)
        mujoco.mj_setState(self._model, self._data, state, self._spec)
        for span, begin, end in zip(self._derived, self._ends, self._ends[1:], strict=False):
            span.memory[:] = derived[begin:end]
        mujoco.mj_collision(self._model, self._data)


class _Span:
    """Neighbouring arrays as one piece of memory, so that they are copied and compared at once."""

    def __init__(self, fields: Sequence[tuple[str, np.ndarray]], size: int, dtype: type):
        first = fields[0][1]
        start = _address(first)
        raw = np.lib.stride_tricks.as_strided(first.reshape(-1).view(np.uint8), (size,), (1,))
        self.memory: np.ndarray = raw.view(dtype)
        self.base = self.memory.copy()
        self._names = [name for name, _ in fields]
        self._begins = np.array([_address(array) - start for _, array in fields])
        self._seen, self._changed = self.memory.tobytes(), list[str]()

    def changed(self) -> list[str]:
        """The arrays whose content is no longer that of the beginning; at once where it is that of the last call."""
        content = self.memory.tobytes()
        if content != self._seen:
            places = np.flatnonzero(self.memory != self.base)
            fields = np.searchsorted(self._begins, places, "right") - 1
            self._seen, self._changed = content, [self._names[index] for index in sorted(set(fields.tolist()))]
        return self._changed


def _spans(fields: Mapping[str, np.ndarray], dtype: type) -> list[_Span]:
    runs: list[list[tuple[str, np.ndarray]]] = []
    end = -_ALIGNMENT
    for name, array in sorted(fields.items(), key=lambda item: _address(item[1])):
        if 0 <= _address(array) - end < _ALIGNMENT:
            runs[-1].append((name, array))
        else:
            runs.append([(name, array)])
        end = _address(array) + array.nbytes
    # By name, since which of two allocations comes first in memory differs from one process to the next.
    runs.sort(key=lambda run: run[0][0])
    return [_Span(run, _address(run[-1][1]) + run[-1][1].nbytes - _address(run[0][1]), dtype) for run in runs]


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def _arrays(struct: object) -> dict[str, np.ndarray]:
    found = ((name, getattr(struct, name)) for name in dir(struct) if not name.startswith("_"))
    return {name: value for name, value in found if isinstance(value, np.ndarray) and value.size}


def _scalars(struct: object) -> list[str]:
    return [n for n in dir(struct) if not n.startswith("_") and isinstance(getattr(struct, n), (int, float))]
