"""The base of learned policies: a network from observations and an instruction to a chunk of actions."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from learning.network import Network, Normaliser
from learning.words import Vocabulary
from policies.learned.features import Batch, Features, Inputs


@dataclass(frozen=True, slots=True)
class Predicted:
    """Chunks ``[n, H, A]`` in action units; ``log_prob`` and ``entropy`` [n, H] of each action (nats) if tractable."""

    chunk: torch.Tensor
    log_prob: torch.Tensor | None = None
    entropy: torch.Tensor | None = None


class ChunkNetwork(Network):
    """A network with all it needs beside its weights: features, vocabulary, and statistics (as buffers).

    A subclass names its ``kind``, keeps its settings in ``settings`` (JSON data, the arguments of its constructor), and
    gives :meth:`loss` and :meth:`predict`. It draws nothing by itself: noise is an argument.
    """

    noise_shape: tuple[int, ...]
    """Shape of the standard normal draws that one prediction takes."""
    has_density: bool = False
    """Whether predictions come with densities."""

    def __init__(self, features: Features, vocabulary: Vocabulary, settings: Mapping[str, Any]):
        super().__init__()
        self.features = features
        self.vocabulary = vocabulary
        self.settings = dict(settings)
        self.number_statistics = Normaliser(features.number_dim)
        self.action_statistics = Normaliser(features.action_dim)

    @abstractmethod
    def loss(self, batch: Batch, generator: torch.Generator) -> torch.Tensor:
        """The training loss; its own draws come from ``generator``."""

    @abstractmethod
    def predict(self, inputs: Inputs, noise: torch.Tensor) -> Predicted:
        """Chunks of actions under ``noise`` [n, *noise_shape]."""

    def description(self) -> dict[str, Any]:
        """See ``Network.description``."""
        vocabulary = {"words": list(self.vocabulary.words), "length": self.vocabulary.length}
        return {"features": self.features.to_json(), "vocabulary": vocabulary}

    def problem(self) -> str | None:
        """See ``Network.problem``."""
        for name, statistics in (("numbers", self.number_statistics), ("actions", self.action_statistics)):
            if problem := statistics.problem():
                return f"the statistics of {name}: {problem}"
        return None
