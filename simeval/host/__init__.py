"""Hosts: a World whose slots live in worker processes, of this interpreter or of another with other packages; a policy.

``wire`` (messages and shared memory), ``process`` (one supervised worker), ``interpreter``, ``boot`` and ``worker``
(the other side) know nothing of either; ``world`` and ``world_service`` are the two ends of a hosted World, ``policy``
and ``policy_service`` those of a hosted policy.
"""

from simeval.host.policy import HostedPolicy
from simeval.host.world import HostedWorld

__all__ = ["HostedPolicy", "HostedWorld"]
