"""ACT (Zhao et al. 2023): chunks of actions from a conditional variational autoencoder.

The style of a demonstration, what the observation does not determine of it, is encoded in training, and left at its
mean when acting. A small relative of the paper's, with an instruction, as in ``policies.vla``. Acting on the mean of
all chunks that speak of a step (temporal ensembling) is ``policies.chunked.Ensembled``.
"""

from typing import Any

import torch
from torch import nn

from learning.layers import Block, Context, Readout
from learning.words import Vocabulary
from policies.learned.checkpoint import register
from policies.learned.features import Batch, Features, Inputs
from policies.learned.network import ChunkNetwork, Predicted
from policies.learned.observer import Observed, Observer, Reader
from simeval.errors import ConfigError


class StyleEncoder(nn.Module):
    """A demonstrated chunk, and the robot's numbers, as the mean and log-variance of its style."""

    def __init__(self, features: Features, dim: int, heads: int, depth: int, latent: int):
        super().__init__()
        self.asked = nn.Parameter(0.02 * torch.randn(1, 1, dim))
        self.numbers = nn.Linear(features.number_dim, dim) if features.numbers else None
        self.actions = nn.Linear(features.action_dim, dim)
        self.place = nn.Parameter(0.02 * torch.randn(1, features.horizon, dim))
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.leave = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * latent))

    def forward(self, numbers: torch.Tensor, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and log-variance [n, latent] for ``numbers`` [n, P] and ``actions`` [n, H, A], on the common scale."""
        parts = [self.asked.expand(len(actions), -1, -1), self.actions(actions) + self.place]
        if self.numbers is not None:
            parts.append(self.numbers(numbers)[:, None])
        x = torch.cat([part.to(parts[1].dtype) for part in parts], 1)
        for block in self.blocks:
            x = block(x)
        mean, log_variance = self.leave(x[:, 0]).float().chunk(2, -1)
        return mean, log_variance


class ChunkDecoder(nn.Module):
    """A transformer over the H places of a chunk, which reads the observation and the style."""

    def __init__(self, features: Features, dim: int, heads: int, depth: int):
        super().__init__()
        self.place = nn.Parameter(0.02 * torch.randn(1, features.horizon, dim))
        self.blocks = nn.ModuleList(Block(dim, heads, reads=True) for _ in range(depth))
        self.leave = nn.Sequential(nn.LayerNorm(dim), Readout(dim, features.action_dim))

    def forward(self, context: list[Context]) -> torch.Tensor:
        """Actions [n, H, A] on the common scale."""
        keys = context[0][0]
        x = self.place.to(keys.dtype).expand(len(keys), -1, -1)
        for block, read in zip(self.blocks, context, strict=True):
            x = block(x, context=read)
        return self.leave(x)


@register
class ActionChunkingTransformer(ChunkNetwork):
    """The policy's network.

    ``latent``: numbers of a style; ``kl_weight``: the weight of its divergence from a standard normal [per nat] against
    the absolute error of an action, in standard deviations of the demonstrations. ``temperature``: the standard
    deviation of the styles that are acted on; 0, as in the paper, always acts on the mean.
    """

    kind = "act"

    def __init__(
        self,
        features: Features,
        vocabulary: Vocabulary,
        dim: int = 192,
        heads: int = 4,
        depth: int = 3,
        context_depth: int = 2,
        style_depth: int = 2,
        width: int = 32,
        latent: int = 32,
        kl_weight: float = 10.0,
        temperature: float = 0.0,
    ):
        settings: dict[str, Any] = {
            "dim": dim,
            "heads": heads,
            "depth": depth,
            "context_depth": context_depth,
            "style_depth": style_depth,
            "width": width,
            "latent": latent,
            "kl_weight": kl_weight,
            "temperature": temperature,
        }
        super().__init__(features, vocabulary, settings)
        if temperature < 0 or kl_weight < 0:
            raise ConfigError(f"temperature={temperature} and kl_weight={kl_weight} are not negative")
        self.noise_shape = (latent,)
        self.style = StyleEncoder(features, dim, heads, style_depth, latent)
        self.from_style = nn.Linear(latent, dim)
        self.observer = Observer(features, vocabulary, dim, heads, context_depth, width)
        self.reader = Reader(dim, heads, depth)
        self.decoder = ChunkDecoder(features, dim, heads, depth)

    def decode(self, inputs: Inputs, style: torch.Tensor) -> tuple[torch.Tensor, Observed]:
        """Chunks [n, H, A] on the common scale, of ``style`` [n, latent], and what was observed."""
        numbers = self.number_statistics(inputs.numbers)
        observed = self.observer(inputs, numbers, self.from_style(style)[:, None])
        return self.decoder(self.reader(observed.tokens, observed.mask)).float(), observed

    def loss(self, batch: Batch, generator: torch.Generator) -> torch.Tensor:
        """See ``ChunkNetwork.loss``: the absolute error, the styles' divergence from a standard normal, foresight."""
        target = self.action_statistics(batch.action)
        mean, log_variance = self.style(self.number_statistics(batch.inputs.numbers), target)
        noise = torch.randn(mean.shape, generator=generator, device=mean.device)
        found, observed = self.decode(batch.inputs, mean + (log_variance / 2).exp() * noise)
        divergence = (mean**2 + log_variance.exp() - log_variance - 1).sum(-1).mean() / 2
        foresight = observed.foresight_error(self.number_statistics(batch.later))
        return (found - target).abs().mean() + self.settings["kl_weight"] * divergence + foresight

    def predict(self, inputs: Inputs, noise: torch.Tensor) -> Predicted:
        """See ``ChunkNetwork.predict``; ``noise``, scaled by the temperature, is the style."""
        chunk, _ = self.decode(inputs, self.settings["temperature"] * noise)
        return Predicted(self.action_statistics.invert(chunk))
