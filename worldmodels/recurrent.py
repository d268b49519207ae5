"""A recurrent state-space model: a memory that is computed, and beside it a latent that is drawn.

PlaNet (Hafner et al. 2019) with the layers of Dreamer V2 and V3 (2010.02193, 2301.04104): a gated unit with layer norm
carries the memory; the *prior* of the latent follows from the memory alone, the *posterior* from the memory and the
frame that is seen. The posterior's latents must show the frames, and the prior must foresee them: the divergence of
the two, balanced and with free nats. The latent is Gaussian, so that noise of zero is its middle.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import nn
from torch.nn import functional

from simeval.settings import whole
from worldmodels.checkpoint import CHECKPOINTS
from worldmodels.interface import Interface
from worldmodels.model import Imagined, State
from worldmodels.parts import Perceptron
from worldmodels.windowed import Heads, Senses, Statistics, WindowModel, WindowRecipe, share
from worldmodels.windows import Window, WindowData

_LEAST_SPREAD = 0.1
_SURELY = 1e-6
"""Uniform draws are kept so far from 0 and 1, where a normal one would be infinite."""

Normal = tuple[torch.Tensor, torch.Tensor]
"""Mean and standard deviation."""


@dataclass(frozen=True, slots=True)
class RecurrentRecipe(WindowRecipe):
    """``divergence``, the weight of posterior against prior, in nats above those that are ``free``.

    Of it the share ``balance`` teaches the prior, the rest the posterior.
    """

    rollout: int = 8
    divergence: float = 0.001
    balance: float = 0.8
    free: float = 1.0

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """See ``Recipe.of``."""
        recipe = super(RecurrentRecipe, cls).of(settings)
        share("recipe.divergence", recipe.divergence)
        share("recipe.balance", recipe.balance, most=1.0)
        share("recipe.free", recipe.free)
        return recipe


@CHECKPOINTS.register
class Recurrent(WindowModel):
    """A memory of ``width`` numbers, and a latent of ``dim``.

    ``history``: the frames of a window by which the memory is formed before anything is foreseen in validation; in
    training every frame is seen and foreseen. ``reads``: the observations that are encoded (default: all).
    """

    kind = "recurrent"
    recipe = RecurrentRecipe

    def __init__(
        self,
        interface: Interface,
        dim: int,
        width: int,
        history: int,
        channels: int,
        reads: Sequence[str] | str | None = None,
    ):
        super().__init__(interface)
        sizes = {"dim": dim, "width": width, "history": history, "channels": channels}
        for name, size in sizes.items():
            whole(name, size)
        self.history = history
        self.start_draws = self.step_draws = dim
        self.statistics = Statistics(interface)
        self.senses = Senses(interface, reads, width, channels)
        self.settings = {**sizes, "reads": self.senses.reads}
        told = interface.frame_skip * interface.action_dim + len(interface.tasks)
        self.entrance = nn.Sequential(nn.Linear(dim + told, width), nn.LayerNorm(width), nn.SiLU())
        self.gates = nn.Sequential(nn.Linear(2 * width, 3 * width), nn.LayerNorm(3 * width))
        self.prior = Perceptron(width, width, 2 * dim)
        self.posterior = Perceptron(2 * width, width, 2 * dim)
        self.heads = Heads(interface, width + dim, width, channels)

    def problem(self) -> str | None:
        """See ``Network.problem``."""
        return self.statistics.problem()

    def fit(self, data: WindowData) -> None:
        """See ``WindowModel.fit``."""
        self.statistics.fit(data)

    def loss(self, window: Window, recipe: RecurrentRecipe, generator: torch.Generator) -> torch.Tensor:
        """See ``WindowModel.loss``: the frames of a window, one after the other; an episode begins with no memory."""
        count, frames = len(window), window.frames
        sensed = self.senses(self.statistics, {name: value.flatten(0, 1) for name, value in window.seen.items()})
        sensed = sensed.unflatten(0, (count, frames))
        action, task = self.statistics.block(window.action), self._told(window.task)
        noise = torch.randn(frames, count, self.step_draws, generator=generator, device=action.device)
        memory = sensed.new_zeros(count, sensed.shape[-1])
        latent = _drawn(self._posterior(memory, sensed[:, 0]), noise[0])
        features, apart = [], []
        for way in range(frames - 1):
            moved = self._moved(memory, latent, action[:, way], task)
            memory = moved.where(window.real[:, way, None], 0.0)
            posterior = self._posterior(memory, sensed[:, way + 1])
            latent = _drawn(posterior, noise[way + 1])
            apart.append(_balanced(posterior, _normal(self.prior(memory)), recipe))
            features.append(torch.cat([memory, latent], -1))
        real = window.real.float()
        total = recipe.divergence * (torch.stack(apart, 1) * real).sum() / real.sum().clamp(min=1)
        tasks = task[:, None].expand(-1, frames - 1, -1)
        shown = torch.stack(features, 1)
        return total + self.heads.loss(self.statistics, shown, action, tasks, window, slice(1, frames))

    def encode(self, seen: Mapping[str, torch.Tensor], task: torch.Tensor, draws: torch.Tensor) -> State:
        """See ``WorldModel.encode``."""
        sensed = self.senses(self.statistics, seen)
        memory = torch.zeros_like(sensed)
        noise = torch.special.ndtri(draws.clamp(_SURELY, 1 - _SURELY))
        return {"memory": memory, "latent": _drawn(self._posterior(memory, sensed), noise), "task": task}

    def step(self, state: State, action: torch.Tensor, noise: torch.Tensor) -> tuple[State, Imagined]:
        """See ``WorldModel.step``."""
        block, task = self.statistics.block(action), self._told(state["task"])
        memory = self._moved(state["memory"], state["latent"], block, task)
        latent = _drawn(_normal(self.prior(memory)), noise)
        imagined = self.heads.read(self.statistics, torch.cat([memory, latent], -1), block, task)
        return {**state, "memory": memory, "latent": latent}, imagined

    def observe(
        self, state: State, action: torch.Tensor, seen: Mapping[str, torch.Tensor], noise: torch.Tensor
    ) -> State:
        """See ``WorldModel.observe``."""
        block, task = self.statistics.block(action), self._told(state["task"])
        memory = self._moved(state["memory"], state["latent"], block, task)
        posterior = self._posterior(memory, self.senses(self.statistics, seen))
        return {**state, "memory": memory, "latent": _drawn(posterior, noise)}

    def _moved(
        self, memory: torch.Tensor, latent: torch.Tensor, action: torch.Tensor, task: torch.Tensor
    ) -> torch.Tensor:
        entering = self.entrance(torch.cat([latent, action, task], -1))
        kept, proposed, renewed = self.gates(torch.cat([memory, entering], -1)).chunk(3, -1)
        part = torch.sigmoid(renewed - 1)
        return part * torch.tanh(torch.sigmoid(kept) * proposed) + (1 - part) * memory

    def _posterior(self, memory: torch.Tensor, sensed: torch.Tensor) -> Normal:
        return _normal(self.posterior(torch.cat([memory, sensed], -1)))

    def _told(self, task: torch.Tensor) -> torch.Tensor:
        return functional.one_hot(task, len(self.interface.tasks)).float()


def _normal(said: torch.Tensor) -> Normal:
    mean, spread = said.float().chunk(2, -1)
    return mean, 2 * torch.sigmoid(spread / 2) + _LEAST_SPREAD


def _detached(normal: Normal) -> Normal:
    return normal[0].detach(), normal[1].detach()


def _drawn(normal: Normal, noise: torch.Tensor) -> torch.Tensor:
    return normal[0] + normal[1] * noise


def _balanced(posterior: Normal, prior: Normal, recipe: RecurrentRecipe) -> torch.Tensor:
    """[n], in nats: what teaches the prior, and what teaches the posterior."""
    foreseen = divergence(_detached(posterior), prior).clamp(min=recipe.free)
    foreseeable = divergence(posterior, _detached(prior)).clamp(min=recipe.free)
    return recipe.balance * foreseen + (1 - recipe.balance) * foreseeable


def divergence(first: Normal, second: Normal) -> torch.Tensor:
    """Kullback-Leibler divergence [n] of diagonal normal distributions [n, dim], in nats."""
    (mean, spread), (other, wide) = first, second
    each = torch.log(wide / spread) + (spread.square() + (mean - other).square()) / (2 * wide.square()) - 0.5
    return each.sum(-1)
