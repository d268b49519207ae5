"""A small network that says after each step whether the goal holds, and from that how likely an episode succeeded."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import expit
from torch import nn
from torch.nn import functional

from judges.sight import Seen, Sight
from learning.checkpoint import Checkpoints
from learning.network import Network, Normaliser
from learning.words import PADDING, Vocabulary
from simeval.settings import whole

_WORD = 32
_LEAST_SCALE = 1e-3


def _build(network: "type[SuccessClassifier]", config: Mapping[str, Any]) -> "SuccessClassifier":
    vocabulary = Vocabulary(config["vocabulary"]["words"], int(config["vocabulary"]["length"]))
    return network(Sight.from_json(config["sight"]), vocabulary, **config["settings"])


CHECKPOINTS: "Checkpoints[SuccessClassifier]" = Checkpoints(
    what="judge",
    form="simeval-judge/1",
    modules={"classifier": "judges.network"},
    shipped="judges",
    build=_build,
)


@CHECKPOINTS.register
class SuccessClassifier(Network):
    """Convolutions of ``channels`` over each camera's frames, and a perceptron of ``width`` over all that is seen.

    An episode succeeds as its goal holds for as long as the World asks: the largest of the least logits in a row. Its
    probability is that, scaled and shifted to be calibrated on episodes that are never trained on (Platt 1999).
    """

    kind = "classifier"

    positive: torch.Tensor
    scaling: torch.Tensor

    def __init__(self, sight: Sight, vocabulary: Vocabulary, width: int, channels: Sequence[int], dropout: float):
        super().__init__()
        self.sight, self.vocabulary = sight, vocabulary
        self.settings = {"width": whole("width", width), "channels": list(channels), "dropout": float(dropout)}
        self.number_statistics = Normaliser(sight.number_dim)
        self.register_buffer("positive", torch.tensor(torch.nan))
        self.register_buffer("scaling", torch.full((2,), torch.nan))
        self.words = nn.EmbeddingBag(len(vocabulary), _WORD, mode="mean", padding_idx=PADDING)
        self.cameras = nn.ModuleDict(
            {key: _Eye(3 * sight.frames, channels, side, width) for key, side in sight.images.items()}
        )
        seen = sight.frames * sight.number_dim + len(sight.images) * width + _WORD
        self.perceptron = nn.Sequential(
            *(nn.Linear(seen, width), nn.LayerNorm(width), nn.SiLU(), nn.Dropout(dropout)),
            *(nn.Linear(width, width), nn.LayerNorm(width), nn.SiLU(), nn.Dropout(dropout)),
            nn.Linear(width, 1),
        )

    def description(self) -> dict[str, Any]:
        """See ``Network.description``."""
        vocabulary = {"words": list(self.vocabulary.words), "length": self.vocabulary.length}
        return {"sight": self.sight.to_json(), "vocabulary": vocabulary}

    def problem(self) -> str | None:
        """See ``Network.problem``."""
        if problem := self.number_statistics.problem():
            return f"the statistics of numbers: {problem}"
        if not 0 < float(self.positive) < 1:
            return "the share of steps after which the goal holds is missing"
        if not (torch.isfinite(self.scaling).all() and self.scaling[0] > 0):
            return "it was not calibrated"
        return None

    def forward(self, seen: Seen) -> torch.Tensor:
        """The logit [n] that the goal holds, at even odds beforehand."""
        numbers = self.number_statistics(seen.numbers).flatten(1)
        looked = [eye(seen.images[key].flatten(1, 2)) for key, eye in self.cameras.items()]
        return self.perceptron(torch.cat([numbers, *looked, self.words(seen.tokens)], 1)).float()[:, 0]

    def loss(self, seen: Seen) -> torch.Tensor:
        """Cross-entropy, with as much weight on steps after which the goal holds as on the others."""
        goal = seen.goal.float()
        weight = goal / (2 * self.positive) + (1 - goal) / (2 * (1 - self.positive))
        return functional.binary_cross_entropy_with_logits(self(seen), goal, weight)

    def episode(self, logits: torch.Tensor) -> torch.Tensor:
        """The logit of an episode with ``logits`` [T] after its steps, not calibrated."""
        hold = min(self.sight.success_hold, len(logits))
        return logits.unfold(0, hold, 1).amin(1).max()

    def calibrated(self, logits: torch.Tensor) -> torch.Tensor:
        """Probabilities of success of the logits of episodes."""
        return torch.sigmoid(self.scaling[0] * logits + self.scaling[1])

    def calibrate(self, logits: torch.Tensor, succeeded: torch.Tensor) -> None:
        """Fit scale and shift to episodes [n] never trained on: logistic regression on targets short of 0 and 1."""
        x, good = logits.double().numpy(), succeeded.numpy()
        count = int(good.sum())
        target = np.where(good, (count + 1) / (count + 2), 1 / (len(good) - count + 2))

        def misfit(found: np.ndarray) -> tuple[float, np.ndarray]:
            said = found[0] * x + found[1]
            residual = expit(said) - target
            error = float(np.mean(np.logaddexp(0, said) - target * said))
            return error, np.array([np.mean(residual * x), np.mean(residual)])

        fitted = minimize(misfit, [1.0, 0.0], jac=True, bounds=[(_LEAST_SCALE, None), (None, None)])
        self.scaling.copy_(torch.from_numpy(fitted.x))


class _Eye(nn.Module):
    """Strided convolutions over uint8 images [n, channels, side, side], to [n, width]."""

    def __init__(self, inputs: int, channels: Sequence[int], side: int, width: int):
        super().__init__()
        layers: list[nn.Module] = []
        for outputs in channels:
            layers += [nn.Conv2d(inputs, outputs, 3, 2, 1), nn.GroupNorm(1, outputs), nn.SiLU()]
            inputs, side = outputs, -(-side // 2)
        self.layers = nn.Sequential(*layers, nn.Flatten(), nn.Linear(inputs * side * side, width), nn.SiLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x.float() / 127.5 - 1)
