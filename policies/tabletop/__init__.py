"""The scripted expert of the tabletop."""

from policies.tabletop.expert import TabletopExpert

__all__ = ["TabletopExpert"]
