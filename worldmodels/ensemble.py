"""An ensemble of Gaussian perceptrons over vectors (PETS, Chua et al. 2018; NEUBAY, 2512.04341).

Every member has layer norm and predicts mean and variance of a step's change. One member, chosen by the key, imagines
a whole episode; where the means of all members differ more than they ever do in the data, the model knows that it does
not know. Reward, success and termination are read from the state that was imagined.
"""

from collections.abc import Mapping

import torch
from torch import nn
from torch.nn import functional

from learning.network import Normaliser
from simeval.settings import whole
from worldmodels.checkpoint import CHECKPOINTS
from worldmodels.interface import NUMBERS, Interface
from worldmodels.model import Imagined, State, WorldModel
from worldmodels.parts import Perceptron
from worldmodels.transitions import Transitions

_HEADS = 3
"""Reward, success, termination."""


@CHECKPOINTS.register
class Ensemble(WorldModel):
    """``members`` perceptrons of ``width``, each learning from batches of its own."""

    kind = "ensemble"
    start_draws = 1

    low: torch.Tensor
    high: torch.Tensor
    moving: torch.Tensor
    largest_disagreement: torch.Tensor

    def __init__(self, interface: Interface, members: int, width: int):
        super().__init__(interface)
        self.settings = {"members": whole("members", members), "width": whole("width", width)}
        numbers, actions = interface.number_dim, interface.action_dim
        self.step_draws = numbers
        self.number_statistics = Normaliser(numbers)
        self.action_statistics = Normaliser(actions)
        self.change_statistics = Normaliser(numbers)
        self.reward_statistics = Normaliser(1)
        self.register_buffer("low", torch.full((numbers,), torch.nan))
        self.register_buffer("high", torch.full((numbers,), torch.nan))
        self.register_buffer("moving", torch.zeros(numbers))
        self.register_buffer("largest_disagreement", torch.tensor(torch.nan))
        known = numbers + actions + len(interface.tasks)
        self.dynamics = nn.ModuleList(Perceptron(known, width, 2 * numbers) for _ in range(members))
        self.heads = nn.ModuleList(Perceptron(known, width, _HEADS) for _ in range(members))
        self.least = nn.Parameter(torch.full((numbers,), -10.0))
        self.most = nn.Parameter(torch.full((numbers,), 0.5))

    @property
    def trusted(self) -> float:
        """See ``WorldModel.trusted``."""
        return float(self.largest_disagreement)

    def problem(self) -> str | None:
        """See ``Network.problem``."""
        parts = ("number", "action", "change", "reward")
        for name in parts:
            if problem := getattr(self, f"{name}_statistics").problem():
                return f"the statistics of {name}s: {problem}"
        bounded = torch.isfinite(self.low).all() and torch.isfinite(self.high).all()
        if not (bounded and torch.isfinite(self.largest_disagreement)):
            return "the range of the data or the largest disagreement in it is missing"
        return None

    def fit(self, data: Transitions) -> None:
        """Take the statistics of transitions."""
        self.number_statistics.fit(data.numbers.numpy())
        self.action_statistics.fit(data.action.numpy())
        change = (data.following - data.numbers).numpy()
        self.change_statistics.fit(change)
        self.reward_statistics.fit(data.reward[:, None].numpy())
        seen = torch.cat([data.numbers, data.following])
        least, most = seen.amin(0), seen.amax(0)
        self.low.copy_(least - (most - least))
        self.high.copy_(most + (most - least))
        self.moving.copy_(torch.from_numpy((change != change[:1]).any(0)))

    def loss(self, batch: Transitions) -> torch.Tensor:
        """Each member on its part of the rows: Gaussian likelihood of the change, errors of the heads."""
        members = len(self.dynamics)
        known = self._known(batch.numbers, batch.action, batch.task)
        target = self.change_statistics(batch.following - batch.numbers)
        after = self._known(batch.following, batch.action, batch.task)
        reward = self.reward_statistics(batch.reward[:, None])[:, 0]
        total = known.new_zeros(())
        parts = [slice(m * len(known) // members, (m + 1) * len(known) // members) for m in range(members)]
        taught = [(member, rows) for member, rows in enumerate(parts) if rows.start < rows.stop]
        for member, rows in taught:
            mean, log_variance = self._change(member, known[rows])
            error = (target[rows] - mean).square()
            likelihood = self.moving * (error * torch.exp(-log_variance) + log_variance)
            total = total + likelihood.sum(-1).mean() / self.moving.sum().clamp(min=1)
            said = self.heads[member](after[rows]).float()
            total = total + (said[:, 0] - reward[rows]).square().mean()
            for column, truth in ((1, batch.success), (2, batch.terminated)):
                total = total + functional.binary_cross_entropy_with_logits(said[:, column], truth[rows].float())
        return total / len(taught) + 0.01 * (self.most - self.least).mean()

    def encode(self, seen: Mapping[str, torch.Tensor], task: torch.Tensor, draws: torch.Tensor) -> State:
        """See ``WorldModel.encode``."""
        member = (draws[:, 0] * len(self.dynamics)).long().clamp(max=len(self.dynamics) - 1)
        return {"numbers": seen[NUMBERS], "task": task, "member": member}

    def step(self, state: State, action: torch.Tensor, noise: torch.Tensor) -> tuple[State, Imagined]:
        """See ``WorldModel.step``."""
        numbers, task, member = state["numbers"], state["task"], state["member"]
        known = self._known(numbers, action, task)
        said = [self._change(index, known) for index in range(len(self.dynamics))]
        means, log_variances = (torch.stack(part, 1) for part in zip(*said, strict=True))
        row = torch.arange(len(numbers), device=numbers.device)
        drawn = means[row, member] + torch.exp(log_variances[row, member] / 2) * noise
        change = torch.where(self.moving > 0, self.change_statistics.invert(drawn), self.change_statistics.mean)
        following = (numbers + change).clamp(self.low, self.high)
        after = self._known(following, action, task)
        heads = torch.stack([head(after) for head in self.heads], 1)[row, member]
        imagined = Imagined(
            {NUMBERS: following},
            self.reward_statistics.invert(heads[:, :1])[:, 0],
            heads[:, 1] > 0,
            heads[:, 2] > 0,
            self._disagreement(means),
        )
        return {**state, "numbers": following}, imagined

    def observe(
        self, state: State, action: torch.Tensor, seen: Mapping[str, torch.Tensor], noise: torch.Tensor
    ) -> State:
        """See ``WorldModel.observe``."""
        return {**state, "numbers": seen[NUMBERS]}

    def disagreement(self, batch: Transitions) -> torch.Tensor:
        """Of the members' means for each of n transitions: [n]."""
        known = self._known(batch.numbers, batch.action, batch.task)
        return self._disagreement(torch.stack([self._change(i, known)[0] for i in range(len(self.dynamics))], 1))

    def _disagreement(self, means: torch.Tensor) -> torch.Tensor:
        variance = means.var(1, unbiased=False) * self.moving
        return (variance.sum(-1) / self.moving.sum().clamp(min=1)).sqrt()

    def _known(self, numbers: torch.Tensor, action: torch.Tensor, task: torch.Tensor) -> torch.Tensor:
        told = functional.one_hot(task, len(self.interface.tasks)).to(numbers.dtype)
        return torch.cat([self.number_statistics(numbers), self.action_statistics(action), told], -1)

    def _change(self, member: int, known: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_variance = self.dynamics[member](known).float().chunk(2, -1)
        log_variance = self.most - functional.softplus(self.most - log_variance)
        return mean, self.least + functional.softplus(log_variance - self.least)
