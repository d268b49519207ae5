"""Diffusion policy (Chi et al. 2023): a chunk of actions, denoised by a convolutional network over time.

A small relative of the paper's: one observation instead of two, and an instruction, as in ``policies.vla``. The noise
schedule, and its inversion step by step, are those of diffusers; every draw is an argument.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from diffusers.schedulers.scheduling_ddim import DDIMScheduler
from torch import nn
from torch.nn import functional

from learning.layers import sinusoids
from learning.words import Vocabulary
from policies.learned.checkpoint import register
from policies.learned.features import Batch, Features, Inputs
from policies.learned.network import ChunkNetwork, Predicted
from policies.learned.observer import Observed, Observer
from simeval.errors import ConfigError


class TemporalBlock(nn.Module):
    """Two convolutions over time, with a residual; a condition scales and shifts what is between them."""

    def __init__(self, channels_in: int, channels: int, condition: int):
        super().__init__()
        self.first = nn.Conv1d(channels_in, channels, 5, padding=2)
        self.second = nn.Conv1d(channels, channels, 5, padding=2)
        self.norms = nn.ModuleList(nn.GroupNorm(8, channels) for _ in range(2))
        self.film = nn.Linear(condition, 2 * channels)
        self.skip = nn.Conv1d(channels_in, channels, 1)

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        """``x`` [n, c, time] under ``condition`` [n, k]."""
        scale, shift = self.film(functional.mish(condition))[..., None].chunk(2, 1)
        h = functional.mish(self.norms[0](self.first(x))) * (1 + scale) + shift
        return functional.mish(self.norms[1](self.second(h))) + self.skip(x)


class TemporalUNet(nn.Module):
    """A U-shaped network over the H actions of a chunk; each level after the first halves the time."""

    def __init__(self, action_dim: int, channels: Sequence[int], condition: int):
        super().__init__()
        first, last = channels[0], channels[-1]
        pairs = list(pairwise(channels))
        self.enter = nn.Conv1d(action_dim, first, 1)
        self.down = nn.ModuleList(TemporalBlock(c, c, condition) for c in channels[:-1])
        self.shrink = nn.ModuleList(nn.Conv1d(c, d, 3, 2, 1) for c, d in pairs)
        self.middle = nn.ModuleList(TemporalBlock(last, last, condition) for _ in range(2))
        self.grow = nn.ModuleList(nn.ConvTranspose1d(d, c, 4, 2, 1) for c, d in reversed(pairs))
        self.up = nn.ModuleList(TemporalBlock(2 * c, c, condition) for c, _ in reversed(pairs))
        self.leave = nn.Sequential(
            nn.Conv1d(first, first, 5, padding=2),
            nn.GroupNorm(8, first),
            nn.Mish(),
            nn.Conv1d(first, action_dim, 1),
        )

    def forward(self, actions: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        """``actions`` [n, H, A] under ``condition`` [n, k]; returns [n, H, A]."""
        x = self.enter(actions.transpose(1, 2))
        kept = []
        for block, shrink in zip(self.down, self.shrink, strict=True):
            x = block(x, condition)
            kept.append(x)
            x = shrink(x)
        for block in self.middle:
            x = block(x, condition)
        for grow, block in zip(self.grow, self.up, strict=True):
            x = block(torch.cat([grow(x), kept.pop()], 1), condition)
        return self.leave(x).transpose(1, 2)


@register
class DiffusionPolicy(ChunkNetwork):
    """The policy's network.

    ``diffusion_steps``: noise levels trained on, a cosine schedule (Nichol and Dhariwal 2021); ``steps``: how many of
    them a prediction goes through. ``eta`` 0 is DDIM (Song et al. 2021), whose one draw is the noise that it begins
    from; 1 is DDPM (Ho et al. 2020), which draws at every step. ``draws``: noise levels trained per observation, which
    share its encoding. ``channels`` of the levels of the U-shaped network; the rest is the observer's.

    The network predicts the velocity (Salimans and Ho 2022): from the last, all but pure noise, an action follows
    without a division by nearly zero, so that nothing has to be clipped to a range that would have to be known.
    """

    kind = "diffusion"

    def __init__(
        self,
        features: Features,
        vocabulary: Vocabulary,
        dim: int = 128,
        heads: int = 4,
        context_depth: int = 2,
        width: int = 32,
        channels: Sequence[int] = (64, 128, 256),
        diffusion_steps: int = 100,
        steps: int = 10,
        eta: float = 0.0,
        draws: int = 4,
    ):
        settings: dict[str, Any] = {
            "dim": dim,
            "heads": heads,
            "context_depth": context_depth,
            "width": width,
            "channels": list(channels),
            "diffusion_steps": diffusion_steps,
            "steps": steps,
            "eta": eta,
            "draws": draws,
        }
        super().__init__(features, vocabulary, settings)
        shrinks = 2 ** (len(channels) - 1)
        if not channels or features.horizon % shrinks:
            raise ConfigError(
                f"a network of {len(channels)} levels takes chunks whose length is a multiple of {shrinks}; received "
                f"horizon={features.horizon}"
            )
        if steps < 1 or diffusion_steps % steps:
            raise ConfigError(
                f"diffusion_steps is a multiple of steps; received diffusion_steps={diffusion_steps}, steps={steps}"
            )
        if not 0 <= eta <= 1:
            raise ConfigError(f"eta lies between 0 (DDIM) and 1 (DDPM); received {eta}")
        self.scheduler = DDIMScheduler(
            diffusion_steps,
            beta_schedule="squaredcos_cap_v2",
            prediction_type="v_prediction",
            timestep_spacing="trailing",
            clip_sample=False,
        )
        self.scheduler.set_timesteps(steps)
        self._moments: list[int] = self.scheduler.timesteps.tolist()
        self.noise_shape = (steps if eta > 0 else 1, features.horizon, features.action_dim)
        self.observer = Observer(features, vocabulary, dim, heads, context_depth, width)
        self.summary = nn.Parameter(0.02 * torch.randn(1, 1, dim))
        self.time = nn.Sequential(nn.Linear(dim, 4 * dim), nn.Mish(), nn.Linear(4 * dim, dim))
        self.unet = TemporalUNet(features.action_dim, channels, 2 * dim)

    def encode(self, inputs: Inputs) -> tuple[torch.Tensor, Observed]:
        """A summary [n, dim] of ``n`` observations, all that the denoising is told of them, and what was observed."""
        numbers = self.number_statistics(inputs.numbers)
        observed = self.observer(inputs, numbers, self.summary.expand(len(inputs), -1, -1))
        return observed.said + observed.tokens[:, -1], observed

    def velocity(self, noisy: torch.Tensor, moment: torch.Tensor, summary: torch.Tensor) -> torch.Tensor:
        """The velocity [n, H, A] at ``noisy`` [n, H, A] and noise levels ``moment`` [n]."""
        level = sinusoids(moment / self.settings["diffusion_steps"], summary.shape[-1]).to(summary.dtype)
        return self.unet(noisy, torch.cat([self.time(level), summary], 1)).float()

    def loss(self, batch: Batch, generator: torch.Generator) -> torch.Tensor:
        """See ``ChunkNetwork.loss``: the squared error of the velocity, and foresight."""
        draws = self.settings["draws"]
        summary, observed = self.encode(batch.inputs)
        summary = summary.repeat_interleave(draws, 0)
        target = self.action_statistics(batch.action).repeat_interleave(draws, 0)
        noise = torch.randn(target.shape, generator=generator, device=target.device)
        levels = (len(target),)
        moment = torch.randint(self.settings["diffusion_steps"], levels, generator=generator, device=target.device)
        noisy = self.scheduler.add_noise(target, noise, moment)
        found = self.velocity(noisy, moment, summary)
        foresight = observed.foresight_error(self.number_statistics(batch.later))
        return ((found - self.scheduler.get_velocity(target, noise, moment)) ** 2).mean() + foresight

    def predict(self, inputs: Inputs, noise: torch.Tensor) -> Predicted:
        """See ``ChunkNetwork.predict``; the first draw is what is denoised, the others are DDPM's, one a step."""
        summary, _ = self.encode(inputs)
        return Predicted(self.action_statistics.invert(self.denoise(summary, noise)))

    def denoise(self, summary: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        """Chunks [n, H, A] on the common scale from ``noise`` [n, *noise_shape]; a pure function."""
        x, eta = noise[:, 0], self.settings["eta"]
        for step, moment in enumerate(self._moments, 1):
            # the last step leads to no noise, and adds none
            drawn = noise[:, step] if step < noise.shape[1] else torch.zeros_like(x)
            found = self.velocity(x, torch.full((len(x),), moment, device=x.device), summary)
            x = self.scheduler.step(found, moment, x, eta, variance_noise=drawn, return_dict=False)[0]
        return x
