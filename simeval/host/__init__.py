"""Hosts: a World whose slots live in worker processes, of this interpreter or of another one with other packages.

``wire`` (messages and shared memory), ``process`` (one supervised worker), ``interpreter``, ``boot`` and ``worker``
(the other side) know nothing of Worlds; ``world`` and ``world_service`` are the two ends of a hosted World.
"""

from simeval.host.world import HostedWorld

__all__ = ["HostedWorld"]
