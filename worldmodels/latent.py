"""A joint-embedding model: encoder and predictor learn together, and nothing is reconstructed to learn them.

LeWorldModel (2603.19312): a causal transformer over a few latents, whose layers are scaled and shifted by the actions,
foresees the next; SIGReg keeps the latents from collapsing. SG-JEPA (2609.10464): the loss goes over a rollout of
several frames, each foreseen from the ones foreseen before, and a physical parameter is told beside the action. Heads
and decoders read the latent and do not shape it. That the predictor adds to the last latent is ours.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import nn
from torch.nn import functional

from learning.layers import Block
from simeval.errors import ConfigError
from simeval.settings import whole
from worldmodels.checkpoint import CHECKPOINTS
from worldmodels.interface import NUMBERS, Interface
from worldmodels.model import Imagined, State
from worldmodels.windowed import Heads, Senses, Statistics, WindowModel, WindowRecipe, share
from worldmodels.windows import Window, WindowData

_KNOTS, _REACH = 17, 3.0


@dataclass(frozen=True, slots=True)
class LatentRecipe(WindowRecipe):
    """``discount`` of later frames of a rollout; ``regularisation``, the weight of SIGReg over ``directions``."""

    rollout: int = 5
    discount: float = 0.95
    regularisation: float = 0.09
    directions: int = 1024

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """See ``Recipe.of``."""
        recipe = super(LatentRecipe, cls).of(settings)
        share("recipe.discount", recipe.discount, most=1.0)
        share("recipe.regularisation", recipe.regularisation)
        whole("recipe.directions", recipe.directions)
        return recipe


@CHECKPOINTS.register
class Latent(WindowModel):
    """Latents of ``dim`` numbers, foreseen by ``layers`` of ``width`` from ``history`` frames.

    ``reads``: the observations that are encoded (default: all but the parameter); others are decoded from the latent
    alone. ``parameter``: a vector that stays as it is in an episode and is told to the predictor, e.g. ``gravity``.
    """

    kind = "latent"
    recipe = LatentRecipe

    def __init__(
        self,
        interface: Interface,
        dim: int,
        width: int,
        layers: int,
        heads: int,
        history: int,
        channels: int,
        reads: Sequence[str] | str | None = None,
        parameter: str | None = None,
    ):
        super().__init__(interface)
        sizes = {"dim": dim, "width": width, "layers": layers, "heads": heads, "history": history, "channels": channels}
        for name, size in sizes.items():
            whole(name, size)
        if width % heads:
            raise ConfigError(f"width is a multiple of heads; received width={width} and heads={heads}")
        self.history = history
        self._parameter = slice(0, 0) if parameter is None else interface.places(parameter)
        self.senses = Senses(interface, reads, width, channels, apart=parameter)
        self.settings = {**sizes, "reads": self.senses.reads, "parameter": parameter}
        told = interface.frame_skip * interface.action_dim + len(interface.tasks)
        self.statistics = Statistics(interface)
        self.projector = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, dim), nn.BatchNorm1d(dim, affine=False))
        self.told = nn.Sequential(
            nn.Linear(told + self._parameter.stop - self._parameter.start, width), nn.SiLU(), nn.Linear(width, width)
        )
        self.embedding = nn.Linear(dim, width)
        self.place = nn.Parameter(0.02 * torch.randn(history, width))
        self.blocks = nn.ModuleList(Block(width, heads, conditioned=True) for _ in range(layers))
        last = nn.Linear(width, dim)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.change = nn.Sequential(nn.LayerNorm(width), last)
        self.heads = Heads(interface, dim, width, channels)
        self.register_buffer("causal", torch.full((history, history), -1e9).triu(1), persistent=False)

    causal: torch.Tensor

    def problem(self) -> str | None:
        """See ``Network.problem``."""
        return self.statistics.problem()

    def fit(self, data: WindowData) -> None:
        """See ``WindowModel.fit``."""
        self.statistics.fit(data)

    def loss(self, window: Window, recipe: LatentRecipe, generator: torch.Generator) -> torch.Tensor:
        """See ``WindowModel.loss``."""
        history, frames = self.history, window.frames
        latent = self._latent({name: value.flatten(0, 1) for name, value in window.seen.items()})
        latent = latent.float().unflatten(0, (len(window), frames))
        action = self.statistics.block(window.action)
        parameter = self._scaled(window.seen[NUMBERS][:, history - 1, self._parameter])
        known, foreseen = latent[:, :history], []
        total = latent.new_zeros(())
        for ahead in range(recipe.rollout):
            ways = slice(ahead, ahead + history)
            following = self._foreseen(known, action[:, ways], self._told(window.task), parameter).float()
            wrong = (following - latent[:, ahead + 1 : ahead + history + 1]).square().mean(-1)
            real = window.real[:, ways].float()
            if ahead:
                wrong, real = wrong[:, -1:], real[:, -1:]
            total = total + recipe.discount**ahead * (wrong * real).sum() / real.sum().clamp(min=1)
            foreseen.append(following[:, -1])
            known = torch.cat([known[:, 1:], following[:, -1:]], 1)
        directions = torch.randn(latent.shape[-1], recipe.directions, generator=generator, device=latent.device)
        total = total + recipe.regularisation * sigreg(latent.transpose(0, 1), directions)
        task = self._told(window.task)[:, None].expand(-1, frames - 1, -1)
        total = total + self.heads.loss(self.statistics, latent[:, 1:].detach(), action, task, window, slice(1, frames))
        later, ways = slice(history, frames), slice(history - 1, None)
        imagined = torch.stack(foreseen, 1).detach()
        return total + self.heads.loss(self.statistics, imagined, action[:, ways], task[:, ways], window, later)

    def encode(self, seen: Mapping[str, torch.Tensor], task: torch.Tensor, draws: torch.Tensor) -> State:
        """See ``WorldModel.encode``: the first frame stands still before the beginning."""
        still = torch.from_numpy(self.interface.still).to(draws).repeat(self.interface.frame_skip)
        return {
            "latent": self._latent(seen)[:, None].repeat(1, self.history, 1),
            "action": still.expand(len(task), self.history - 1, -1).clone(),
            "task": task,
            "parameter": seen[NUMBERS][:, self._parameter],
        }

    def step(self, state: State, action: torch.Tensor, noise: torch.Tensor) -> tuple[State, Imagined]:
        """See ``WorldModel.step``."""
        told = torch.cat([state["action"], action[:, None]], 1)
        block, task = self.statistics.block(told), self._told(state["task"])
        parameter = self._scaled(state["parameter"])
        following = self._foreseen(state["latent"], block, task, parameter)[:, -1]
        imagined = self.heads.read(self.statistics, following, block[:, -1], task)
        numbers = imagined.seen[NUMBERS].clone()
        numbers[:, self._parameter] = state["parameter"]
        moved = self._moved(state, following, told)
        return moved, Imagined(
            {**imagined.seen, NUMBERS: numbers}, imagined.reward, imagined.success, imagined.terminated
        )

    def observe(
        self, state: State, action: torch.Tensor, seen: Mapping[str, torch.Tensor], noise: torch.Tensor
    ) -> State:
        """See ``WorldModel.observe``."""
        return self._moved(state, self._latent(seen), torch.cat([state["action"], action[:, None]], 1))

    def _moved(self, state: State, latent: torch.Tensor, told: torch.Tensor) -> State:
        return {**state, "latent": torch.cat([state["latent"][:, 1:], latent[:, None]], 1), "action": told[:, 1:]}

    def _latent(self, seen: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return self.projector(self.senses(self.statistics, seen))

    def _foreseen(
        self, latent: torch.Tensor, action: torch.Tensor, task: torch.Tensor, parameter: torch.Tensor
    ) -> torch.Tensor:
        """What follows each of ``latent`` [n, history, dim] after ``action`` [n, history, …]: [n, history, dim]."""
        same = torch.cat([task, parameter], -1)[:, None].expand(-1, self.history, -1)
        condition = self.told(torch.cat([action, same], -1))
        x = self.embedding(latent) + self.place
        for block in self.blocks:
            x = block(x, mask=self.causal[None, None], condition=condition)
        return latent + self.change(x)

    def _told(self, task: torch.Tensor) -> torch.Tensor:
        return functional.one_hot(task, len(self.interface.tasks)).float()

    def _scaled(self, parameter: torch.Tensor) -> torch.Tensor:
        mean, scale = (part[self._parameter] for part in (self.statistics.number.mean, self.statistics.number.scale))
        return (parameter - mean) / scale


def sigreg(latent: torch.Tensor, directions: torch.Tensor) -> torch.Tensor:
    """How far n rows of each of T sets are from a standard normal: ``latent`` [T, n, dim], ``directions`` [dim, M].

    The Epps-Pulley statistic of the rows along each direction, of their empirical characteristic function against
    exp(-t²/2) under that window, times n, by the trapezoidal rule over 17 knots t in [0, 3] (twice, for -t); the mean
    over directions and sets.
    """
    knots = torch.linspace(0.0, _REACH, _KNOTS, device=latent.device)
    normal = torch.exp(-knots.square() / 2)
    weight = torch.full((_KNOTS,), 2 * _REACH / (_KNOTS - 1), device=latent.device)
    weight[[0, -1]] /= 2
    turned = (latent @ functional.normalize(directions, dim=0))[..., None] * knots
    apart = (turned.cos().mean(1) - normal).square() + turned.sin().mean(1).square()
    return latent.shape[1] * (apart @ (weight * normal)).mean()
