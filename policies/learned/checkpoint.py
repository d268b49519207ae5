"""Checkpoints of policies: see ``learning.checkpoint``."""

from collections.abc import Mapping
from typing import Any

from learning.checkpoint import Checkpoints, content_hash
from learning.words import Vocabulary
from policies.learned.features import Features
from policies.learned.network import ChunkNetwork

__all__ = ["CHECKPOINTS", "content_hash", "load", "located", "network_class", "register", "save"]


def _build(network: type[ChunkNetwork], config: Mapping[str, Any]) -> ChunkNetwork:
    vocabulary = Vocabulary(config["vocabulary"]["words"], int(config["vocabulary"]["length"]))
    return network(Features.from_json(config["features"]), vocabulary, **config["settings"])


CHECKPOINTS: Checkpoints[ChunkNetwork] = Checkpoints(
    what="policy",
    form="simeval-policy/1",
    modules={"act": "policies.act", "diffusion": "policies.diffusion", "vla": "policies.vla"},
    shipped="policies",
    build=_build,
)
register = CHECKPOINTS.register
network_class = CHECKPOINTS.network_class
save = CHECKPOINTS.save
located = CHECKPOINTS.located
load = CHECKPOINTS.load
