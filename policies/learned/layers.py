"""Layers of the policies: image tokens, and transformer blocks that read a context given as plain tensors."""

import math

import torch
from torch import nn
from torch.nn import functional

Context = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Keys and values ``[n, heads, tokens, d / heads]`` and the additive mask ``[n, 1, 1, tokens]`` of one layer."""


class FilmBlock(nn.Module):
    """A residual convolution block whose features a condition scales and shifts (Perez et al. 2018, FiLM)."""

    def __init__(self, channels_in: int, channels: int, stride: int, condition: int):
        super().__init__()
        self.first = nn.Conv2d(channels_in, channels, 3, stride, 1)
        self.second = nn.Conv2d(channels, channels, 3, 1, 1)
        self.norms = nn.ModuleList(nn.GroupNorm(8, channels) for _ in range(2))
        self.skip = nn.Conv2d(channels_in, channels, 1, stride)
        self.film = nn.Linear(condition, 2 * channels)
        nn.init.zeros_(self.film.weight)
        nn.init.zeros_(self.film.bias)

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        """``x`` [n, c, h, w] under ``condition`` [n, k]."""
        scale, shift = self.film(condition)[..., None, None].chunk(2, 1)
        h = functional.silu(self.norms[0](self.first(x)))
        h = self.norms[1](self.second(h)) * (1 + scale) + shift
        return functional.silu(h + self.skip(x))


class Eye(nn.Module):
    """A camera's images as tokens under an instruction: patches of a small residual network, keypoints, and pointers.

    A keypoint is the expected position of a feature map (spatial softmax; Levine et al. 2016), which places a thing
    more finely than patches do; its token also says what is seen there, so that a word can find its thing by attention.
    A pointer is where a word looks: the position and features under the word's own attention to the picture, whose
    keys hold the plain colours beside what is learned.
    """

    def __init__(self, side: int, width: int, dim: int, keypoints: int = 16):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 6, 4, 1), nn.GroupNorm(8, width), nn.SiLU())
        self.fine = FilmBlock(width, 2 * width, 1, dim)
        self.middle = FilmBlock(2 * width, 4 * width, 2, dim)
        self.coarse = FilmBlock(4 * width, 4 * width, 2, dim)
        self.from_patches = nn.Linear(4 * width, dim)
        there = 2 * width + 5
        self.maps = nn.Conv2d(2 * width, keypoints, 1)
        self.from_keypoints = nn.Linear(there, dim)
        self.colours = nn.Sequential(nn.Conv2d(3, width, 1), nn.SiLU(), nn.Conv2d(width, 2 * width, 1))
        self.seen = nn.Conv2d(2 * width, 2 * width, 1)
        self.sought = nn.Linear(dim, 2 * width)
        self.sharpness = nn.Parameter(torch.tensor(math.log(10.0)))
        self.from_pointers = nn.Linear(there, dim)
        with torch.no_grad():
            zeros = torch.zeros(1, dim)
            fine = self.fine(self.stem(torch.zeros(1, 3, side, side)), zeros)
            self.patches = math.prod(self.coarse(self.middle(fine, zeros), zeros).shape[2:])
        down, right = (torch.linspace(-1, 1, size) for size in fine.shape[2:])
        grid = torch.stack(torch.meshgrid(down, right, indexing="ij"))
        self.register_buffer("grid", grid[None], persistent=False)
        self.place = nn.Parameter(0.02 * torch.randn(1, self.patches + keypoints, dim))

    grid: torch.Tensor

    @property
    def tokens(self) -> int:
        """Tokens of an image."""
        return self.place.shape[1]

    def forward(
        self, image: torch.Tensor, condition: torch.Tensor, words: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens [n, tokens, dim] of images [n, 3, side, side] in -1..1 under ``condition`` [n, dim], and what each of
        the ``words`` [n, W, dim] points at [n, W, dim]."""
        fine = self.fine(self.stem(image), condition)
        patches = self.from_patches(self.coarse(self.middle(fine, condition), condition).flatten(2).transpose(1, 2))
        colour = functional.adaptive_avg_pool2d(image, fine.shape[2:])
        there = torch.cat([self.grid.expand(len(fine), -1, -1, -1), colour, fine], 1).flatten(2).transpose(1, 2).float()
        attention = self.maps(fine).flatten(2).float().softmax(-1)
        tokens = torch.cat([patches, self.from_keypoints(attention @ there)], 1) + self.place
        seen = functional.normalize((self.seen(fine) + self.colours(colour)).flatten(2).float(), dim=1)
        sought = functional.normalize(self.sought(words).float(), dim=-1)
        pointing = (self.sharpness.exp() * (sought @ seen)).softmax(-1)
        return tokens, self.from_pointers(pointing @ there)


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
        """``x`` [n, tokens, dim]; ``mask`` [n, 1, 1, tokens] is added to the attention; ``condition`` [n, dim].

        ``context`` has n rows, or n / k when each of its rows is read by k rows of ``x`` in turn.
        """
        if self.modulation is not None and condition is not None:
            shift, scale, gate, shift2, scale2, gate2 = self.modulation(condition)[:, None].chunk(6, -1)
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
