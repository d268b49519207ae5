"""The tabletop World and its tasks."""

from envs.tabletop.tasks import TASKS
from envs.tabletop.world import Tabletop

__all__ = ["TASKS", "Tabletop"]
