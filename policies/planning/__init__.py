"""Model-predictive policies: they plan in a World, at every step anew."""

from policies.planning.imagination import Imagination, Origin, TrueState
from policies.planning.optimisers import CrossEntropy, Optimiser, PathIntegral
from policies.planning.planner import Planner

__all__ = ["CrossEntropy", "Imagination", "Optimiser", "Origin", "PathIntegral", "Planner", "TrueState"]
