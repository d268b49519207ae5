"""Conformance suites that prove any World or Policy, and toy ones of each kind to test everything else with."""

from simeval.testing.certificate import Certificate, Cost, certificate, certify
from simeval.testing.checks import Check, assert_conforms
from simeval.testing.faults import Faulty
from simeval.testing.policy_suite import POLICY_CHECKS, check_policy
from simeval.testing.toy_model import ToyWorldModel
from simeval.testing.toy_policies import ToyExpert, ToyGaussian, ToySmoother, toy_policies
from simeval.testing.toys import ToySimulator
from simeval.testing.world_suite import WORLD_CHECKS, check_world

__all__ = [
    "POLICY_CHECKS",
    "WORLD_CHECKS",
    "Certificate",
    "Check",
    "Cost",
    "Faulty",
    "ToyExpert",
    "ToyGaussian",
    "ToySimulator",
    "ToySmoother",
    "ToyWorldModel",
    "assert_conforms",
    "certificate",
    "certify",
    "check_policy",
    "check_world",
    "toy_policies",
]
