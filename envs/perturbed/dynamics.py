"""Axis ``dynamics``: masses of things, friction of contacts and strength of motors, as powers of two."""

import copy

import mujoco
import numpy as np

from envs.perturbed.changes import Change
from envs.perturbed.parts import Parts, things

_DERIVED = ("body_subtreemass", "dof_M0", "dof_invweight0", "body_invweight0", "tendon_invweight0", "actuator_acc0")
"""What MuJoCo's engine derives from masses before a simulation, and reads during it, beside the mean inertia."""


def change_dynamics(model: mujoco.MjModel, parts: Parts, change: Change) -> None:
    """Multiply by powers of two: ``mass`` (and inertia) of what moves and is no robot, ``friction`` of all contacts.

    ``gain`` multiplies the force of every actuator: of a servo its stiffness and its damping. Limits of forces stay.
    """
    amount = change.amounts
    if amount["friction"]:
        model.geom_friction[:] = model.geom_friction * np.exp2(amount["friction"])
        model.pair_friction[:] = model.pair_friction * np.exp2(amount["friction"])
    if amount["gain"]:
        model.actuator_gainprm[:] = model.actuator_gainprm * np.exp2(amount["gain"])
        model.actuator_biasprm[:] = model.actuator_biasprm * np.exp2(amount["gain"])
    if amount["mass"]:
        bodies = things(model, parts)
        model.body_mass[bodies] = model.body_mass[bodies] * np.exp2(amount["mass"])
        model.body_inertia[bodies] = model.body_inertia[bodies] * np.exp2(amount["mass"])
        _derive(model)


def _derive(model: mujoco.MjModel) -> None:
    """Have MuJoCo derive anew what depends on masses, and nothing else (not the extent that pictures depend on)."""
    other = copy.copy(model)
    mujoco.mj_setConst(other, mujoco.MjData(other))
    for name in _DERIVED:
        getattr(model, name)[...] = getattr(other, name)
    model.stat.meaninertia = other.stat.meaninertia
