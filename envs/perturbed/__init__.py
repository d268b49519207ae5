"""Perturbations of MuJoCo models: one implementation for every World that has one (docs/perturbations.md)."""

from envs.perturbed.changes import COMPONENTS, Change, changes_of
from envs.perturbed.parts import Parts
from envs.perturbed.stage import AXES, LOOKS, Judge, Stage, StagedSimulator, edit, without_looks

__all__ = [
    "AXES",
    "COMPONENTS",
    "LOOKS",
    "Change",
    "Judge",
    "Parts",
    "Stage",
    "StagedSimulator",
    "changes_of",
    "edit",
    "without_looks",
]
