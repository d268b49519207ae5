"""What perturbations do to a rollout outside the World: to what the policy is told, sees, and does.

An :class:`Effect` gives one axis its meaning. Perturbations of the axes in ``World.perturbation_axes`` are put into the
``Start`` instead, and the World applies them itself.
"""

from simeval.perturbation.effect import Effect, EffectMemory, Identity, ReplaceAction
from simeval.perturbation.effects import Effects
from simeval.perturbation.registry import effect_of, register_effect, split

__all__ = [
    "Effect",
    "EffectMemory",
    "Effects",
    "Identity",
    "ReplaceAction",
    "effect_of",
    "register_effect",
    "split",
]
