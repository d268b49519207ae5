"""Conformance suites that prove any World or Policy, and toy ones of each kind to test everything else with."""

from simeval.testing.faults import Delegate, Faulty
from simeval.testing.toy_model import ToyWorldModel
from simeval.testing.toy_policies import ToyExpert, ToyGaussian, ToySmoother, toy_policies
from simeval.testing.toys import ToySimulator

__all__ = [
    "Delegate",
    "Faulty",
    "ToyExpert",
    "ToyGaussian",
    "ToySimulator",
    "ToySmoother",
    "ToyWorldModel",
    "toy_policies",
]
