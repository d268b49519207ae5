"""The bouncing-balls World."""

from envs.balls.world import Balls

__all__ = ["Balls"]
