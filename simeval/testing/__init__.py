"""Conformance suites that prove any World or Policy, and toy ones of each kind to test everything else with."""

from simeval.testing.toys import ToyExpert, ToyGaussian, ToySimulator, ToySmoother

__all__ = ["ToyExpert", "ToyGaussian", "ToySimulator", "ToySmoother"]
