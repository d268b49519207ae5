"""LIBERO and its PRO variants as a World; it runs in the interpreter that ``make libero`` makes."""

from envs.libero.conventions import CONVENTIONS, Convention
from envs.libero.suites import SUITES
from envs.libero.world import Libero

__all__ = ["CONVENTIONS", "SUITES", "Convention", "Libero"]
