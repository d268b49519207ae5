"""A small vision-language-action policy: image and text tokens, and an action expert trained by flow matching.

The design is that of pi0 (Black et al. 2024) at the size of a laptop: a context of words, image tokens and robot state,
encoded once per observation, whose keys and values the action expert reads at every step of the flow (Lipman et al.
2023). Keypoints and feature-wise conditioning by the sentence let two to ten million parameters, trained from nothing,
place their hand by pixels.
"""

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from learning.layers import Block, Context, Readout, sinusoids
from learning.words import Vocabulary
from policies.learned.checkpoint import register
from policies.learned.features import Batch, Features, Inputs
from policies.learned.network import ChunkNetwork, Predicted
from policies.learned.observer import Observed, Observer, Reader
from simeval.errors import ConfigError

_LOG_STD = (-5.0, 1.0)


class ActionExpert(nn.Module):
    """Transformer over the H actions of a chunk that reads the context."""

    def __init__(self, features: Features, dim: int, heads: int, depth: int, outputs: int):
        super().__init__()
        self.enter = nn.Linear(features.action_dim, dim)
        self.place = nn.Parameter(0.02 * torch.randn(1, features.horizon, dim))
        self.blocks = nn.ModuleList(Block(dim, heads, reads=True, conditioned=True) for _ in range(depth))
        self.leave = nn.Sequential(nn.LayerNorm(dim), Readout(dim, outputs))

    def forward(self, actions: torch.Tensor, context: list[Context], condition: torch.Tensor) -> torch.Tensor:
        """``actions`` [n, H, A] under ``condition`` [n, dim]; returns [n, H, outputs]."""
        x = self.enter(actions) + self.place
        for block, read in zip(self.blocks, context, strict=True):
            x = block(x, context=read, condition=condition)
        return self.leave(x)


@register
class VisionLanguageAction(ChunkNetwork):
    """The policy's network. ``head``: ``flow``, or ``gaussian``, whose densities are known (trees and RL need them).

    ``steps``: Euler steps of the flow; ``draws``: points of the flow trained per observation, which share its context.
    Attention to the context is computed from :meth:`encode`'s plain tensors; nothing is cached in the module.
    """

    kind = "vla"

    def __init__(
        self,
        features: Features,
        vocabulary: Vocabulary,
        head: str = "flow",
        dim: int = 192,
        heads: int = 3,
        depth: int = 3,
        context_depth: int = 2,
        width: int = 32,
        steps: int = 5,
        draws: int = 2,
    ):
        settings: dict[str, Any] = {
            "head": head,
            "dim": dim,
            "heads": heads,
            "depth": depth,
            "context_depth": context_depth,
            "width": width,
            "steps": steps,
            "draws": draws,
        }
        super().__init__(features, vocabulary, settings)
        if head not in ("flow", "gaussian"):
            raise ConfigError(f"head must be flow or gaussian; received {head!r}")
        self.has_density = head == "gaussian"
        self.noise_shape = (features.horizon, features.action_dim)
        self.observer = Observer(features, vocabulary, dim, heads, context_depth, width)
        self.reader = Reader(dim, heads, depth)
        self.time = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        outputs = features.action_dim if head == "flow" else 2 * features.action_dim
        self.expert = ActionExpert(features, dim, heads, depth, outputs)

    def encode(self, inputs: Inputs) -> tuple[list[Context], torch.Tensor, Observed]:
        """Of ``n`` observations: what each layer of the expert reads, a summary [n, dim], and what was observed."""
        numbers = self.number_statistics(inputs.numbers)
        observed = self.observer(inputs, numbers, numbers.new_zeros(len(inputs), 0, self.settings["dim"]))
        return self.reader(observed.tokens, observed.mask), observed.said + observed.tokens[:, -1], observed

    def velocity(
        self, action: torch.Tensor, time: torch.Tensor, context: list[Context], summary: torch.Tensor
    ) -> torch.Tensor:
        """d action / d time [n, H, A] of the flow from noise (time 0) to data (time 1), on the common scale."""
        moment = self.time(sinusoids(time, summary.shape[-1]).to(summary.dtype))
        return self.expert(action, context, functional.silu(moment + summary))

    def loss(self, batch: Batch, generator: torch.Generator) -> torch.Tensor:
        """See ``ChunkNetwork.loss``: the flow-matching error, or the negative log-density per number; and foresight."""
        target = self.action_statistics(batch.action)
        context, summary, observed = self.encode(batch.inputs)
        foresight = observed.foresight_error(self.number_statistics(batch.later))
        if self.settings["head"] == "gaussian":
            mean, log_std = self._gaussian(context, summary)
            return (((target - mean) / log_std.exp()) ** 2 / 2 + log_std).mean() + foresight
        draws = self.settings["draws"]
        target, summary = target.repeat_interleave(draws, 0), summary.repeat_interleave(draws, 0)
        noise = torch.randn(target.shape, generator=generator, device=target.device)
        time = torch.rand(len(target), generator=generator, device=target.device)
        point = torch.lerp(noise, target, time[:, None, None])
        return ((self.velocity(point, time, context, summary).float() - (target - noise)) ** 2).mean() + foresight

    def predict(self, inputs: Inputs, noise: torch.Tensor) -> Predicted:
        """See ``ChunkNetwork.predict``."""
        context, summary, _ = self.encode(inputs)
        if self.settings["head"] == "gaussian":
            mean, log_std = self._gaussian(context, summary)
            chunk = self.action_statistics.invert(mean + log_std.exp() * noise)
            scaled = log_std + self.action_statistics.scale.log()
            log_prob = (-(noise**2) / 2 - scaled - math.log(2 * math.pi) / 2).sum(-1)
            entropy = (scaled + math.log(2 * math.pi * math.e) / 2).sum(-1)
            return Predicted(chunk, log_prob, entropy.expand_as(log_prob))
        x, steps = noise, self.settings["steps"]
        for step in range(steps):
            time = torch.full((len(x),), step / steps, device=x.device)
            x = x + self.velocity(x, time, context, summary).float() / steps
        return Predicted(self.action_statistics.invert(x))

    def _gaussian(self, context: list[Context], summary: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        query = torch.zeros(len(summary), *self.noise_shape, device=summary.device, dtype=summary.dtype)
        mean, log_std = self.expert(query, context, functional.silu(summary)).float().chunk(2, -1)
        low, high = _LOG_STD
        return mean, low + (high - low) * torch.sigmoid(log_std)
