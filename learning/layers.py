"""Layers: transformer blocks that read a context given as plain tensors, and readouts that do not mix rows."""

import math

import torch
from torch import nn
from torch.nn import functional

Context = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Keys and values ``[n, heads, tokens, d / heads]`` and the additive mask ``[n, 1, 1, tokens]`` of one layer."""


class Readout(nn.Linear):
    """A linear layer of a few outputs, each row of which is summed by itself.

    Matrix kernels sum so few outputs in another order in some rows than in others: a result would depend, in its last
    bit, on its place in the batch.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """``input`` [..., inputs]; returns [..., outputs]."""
        return (input[..., None, :] * self.weight).sum(-1) + self.bias


class Block(nn.Module):
    """A pre-norm transformer block: self-attention, attention to a context if ``reads``, and a perceptron.

    With ``conditioned``, a condition scales, shifts and gates its parts (Peebles and Xie 2023, adaptive layer norm).
    """

    def __init__(self, dim: int, heads: int, reads: bool = False, conditioned: bool = False):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(
            nn.LayerNorm(dim, elementwise_affine=not conditioned) for _ in range(3 if reads else 2)
        )
        self.own = nn.Linear(dim, 3 * dim)
        self.own_out = nn.Linear(dim, dim)
        self.query = nn.Linear(dim, dim) if reads else None
        self.read_out = nn.Linear(dim, dim) if reads else None
        self.perceptron = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.modulation = nn.Linear(dim, 6 * dim) if conditioned else None
        if self.modulation is not None:
            nn.init.zeros_(self.modulation.weight)
            nn.init.zeros_(self.modulation.bias)

    def forward(
        self,
        x: torch.Tensor,
        mask: torch.Tensor | None = None,
        context: Context | None = None,
        condition: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """``x`` [n, tokens, dim]; ``mask`` [n, 1, 1 or tokens, tokens] is added to the attention.

        ``condition`` is [n, dim], or [n, tokens, dim], each token's own.

        ``context`` has n rows, or n / k when each of its rows is read by k rows of ``x`` in turn.
        """
        if self.modulation is not None and condition is not None:
            modulated = self.modulation(condition).view(len(x), -1, 6 * x.shape[-1])
            shift, scale, gate, shift2, scale2, gate2 = modulated.chunk(6, -1)
        else:
            shift = scale = gate = shift2 = scale2 = gate2 = torch.zeros((), device=x.device, dtype=x.dtype)
        query, key, value = self.own(self.norms[0](x) * (1 + scale) + shift).chunk(3, -1)
        attended = attention(split(query, self.heads), split(key, self.heads), split(value, self.heads), mask)
        x = x + (1 + gate) * self.own_out(_joined(attended))
        if context is not None and self.query is not None and self.read_out is not None:
            keys, values, visible = context
            asked = self.query(self.norms[2](x)).view(len(keys), -1, x.shape[-1])
            read = attention(split(asked, self.heads), keys, values, visible)
            x = x + self.read_out(_joined(read).view_as(x))
        return x + (1 + gate2) * self.perceptron(self.norms[1](x) * (1 + scale2) + shift2)


def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None = None
) -> torch.Tensor:
    """Softmax attention [n, heads, queries, d]; ``mask`` is added to the scores.

    Written out where it is trained on a processor: torch's fused kernel takes most of a training step there (its
    backward does not use matrix tiles).
    """
    if query.device.type != "cpu":
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
    if mask is not None:
        scores = scores + mask.to(scores.dtype)
    return scores.softmax(-1).to(value.dtype) @ value


def split(x: torch.Tensor, heads: int) -> torch.Tensor:
    """``x`` [n, tokens, dim] as [n, heads, tokens, dim / heads]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _joined(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).flatten(2)


def sinusoids(time: torch.Tensor, dim: int, fastest: float = 1000.0) -> torch.Tensor:
    """Sines and cosines [n, dim] of ``time`` [n] in 0..1 at geometric frequencies."""
    frequencies = torch.exp(torch.linspace(0.0, math.log(fastest), dim // 2, device=time.device))
    angles = time[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], -1)
