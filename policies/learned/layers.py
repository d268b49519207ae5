"""Layers of the policies: a camera's images as tokens under a sentence."""

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

POINTERS = 8
"""Pointers of a camera."""
_SHARPNESS = 100.0
"""Of their attention: what an optimiser's first steps on a query are worth."""
_NEIGHBOURS = 5.0
"""The same of what a word's neighbours say of its weight."""
_STRIKING = 8.0
"""How much colour, in place of grey, draws attention before anything is learned."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """An instruction: ``tokens`` [n, W], its ``words`` in context [n, W, dim], which are ``shown`` [n, W, 1] and not
    padding, and their mean, what is ``said`` [n, dim]."""

    tokens: torch.Tensor
    words: torch.Tensor
    shown: torch.Tensor
    said: torch.Tensor


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


class Codes(nn.Module):
    """Points in -1..1 as soft one-hot codes: the softmax of minus their squared distances to a grid of fixed centres.

    What is linear in such a code can be any smooth function of the point, and is learned as fast as a linear one.
    """

    weight: torch.Tensor
    bias: torch.Tensor

    def __init__(self, dimensions: int, side: int):
        super().__init__()
        axis = torch.linspace(-1, 1, side)
        centres = torch.stack(torch.meshgrid(*[axis] * dimensions, indexing="ij")).flatten(1).T
        sharpness = (side - 1) ** 2 / 2
        self.register_buffer("weight", (2 * sharpness * centres)[..., None, None], persistent=False)
        self.register_buffer("bias", -sharpness * centres.square().sum(1), persistent=False)

    def __len__(self) -> int:
        return len(self.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Codes [n, len(self), h, w] of points ``x`` [n, dimensions, h, w]."""
        with torch.autocast(x.device.type, enabled=False):
            return functional.conv2d(x.float(), self.weight, self.bias).softmax(1)


class Pointers(nn.Module):
    """What a sentence has each of ``count`` pointers look for, as the sum of what its words have it look for.

    A word speaks for itself, from the first step of the training; its neighbours and its context only say how much it
    counts for a pointer, so that one may look for the thing that is moved and another for its goal: which of two
    colours is the cube's stands beside it.
    """

    def __init__(self, words: int, dim: int, count: int, length: int):
        super().__init__()
        self.shape = (count, length)
        self.sought = nn.Embedding(words, count * length)
        self.before, self.after = nn.Embedding(words, count), nn.Embedding(words, count)
        self.weight = nn.Linear(dim, count)
        nn.init.zeros_(self.sought.weight)
        nn.init.zeros_(self.before.weight)
        nn.init.zeros_(self.after.weight)
        nn.init.zeros_(self.weight.weight)
        nn.init.zeros_(self.weight.bias)

    def forward(self, tokens: torch.Tensor, words: torch.Tensor, shown: torch.Tensor) -> torch.Tensor:
        """Queries [n, count, length] for ``tokens`` [n, W], ``words`` [n, W, dim] in context, ``shown`` [n, W, 1]."""
        before, after = functional.pad(tokens[:, :-1], (1, 0)), functional.pad(tokens[:, 1:], (0, 1))
        beside = self.before(before).float() + self.after(after).float()
        weight = 2 * torch.sigmoid(self.weight(words).float() + _NEIGHBOURS * beside) * shown.float()
        sought = self.sought(tokens).unflatten(-1, self.shape).float()
        return (weight[..., None] * sought).sum(1)


class Eye(nn.Module):
    """A camera's images as tokens under an instruction: patches of a small residual network, keypoints, and pointers.

    A keypoint is the expected position of a feature map (spatial softmax; Levine et al. 2016), which places a thing
    more finely than patches do; its token also says what is seen there, so that a word can find its thing by attention.
    A pointer is where the sentence has it look: an attention to the picture, whose keys are codes of colour and place.
    Learned features are no keys: with them it finds the hand, which tells where it goes, before it finds what is named.
    What stands out by its colour draws it from the start: were all places alike, a cube would be one in hundreds, too
    little for its word to find it by.
    What it looks for is learned from the places alone that are returned: the noise in the gradient of all that is done
    with its token would drown it.
    """

    def __init__(self, side: int, width: int, dim: int, words: int, keypoints: int = 16):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 6, 4, 1), nn.GroupNorm(8, width), nn.SiLU())
        self.fine = FilmBlock(width, 2 * width, 1, dim)
        self.middle = FilmBlock(2 * width, 4 * width, 2, dim)
        self.coarse = FilmBlock(4 * width, 4 * width, 2, dim)
        self.pool = nn.AvgPool2d(2, ceil_mode=True)
        self.from_patches = nn.Linear(4 * width, dim)
        there = 2 * width + 5
        self.maps = nn.Conv2d(2 * width, keypoints, 1)
        self.from_keypoints = nn.Linear(there, dim)
        self.colours, self.places = Codes(3, 5), Codes(2, 6)
        self.pointers = Pointers(words, dim, POINTERS, len(self.colours) + len(self.places))
        self.from_pointers = nn.Linear(there, dim)
        self.striking = nn.Parameter(torch.tensor(_STRIKING))
        with torch.no_grad():
            zeros = torch.zeros(1, dim)
            fine = self.fine(self.stem(torch.zeros(1, 3, side, side)), zeros)
            self.patches = math.prod(self.pool(self.coarse(self.middle(fine, zeros), zeros)).shape[2:])
        down, right = (torch.linspace(-1, 1, size) for size in fine.shape[2:])
        grid = torch.stack(torch.meshgrid(down, right, indexing="ij"))
        self.register_buffer("grid", grid[None], persistent=False)
        self.place = nn.Parameter(0.02 * torch.randn(1, self.patches + keypoints + POINTERS, dim))

    grid: torch.Tensor

    @property
    def tokens(self) -> int:
        """Tokens of an image."""
        return self.place.shape[1]

    def forward(self, image: torch.Tensor, sentence: Sentence) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens [n, tokens, dim] of images [n, 3, side, side] in -1..1 under a sentence, and the places that it has
        the pointers look at [n, 2 POINTERS], in -1..1."""
        condition = sentence.said
        fine = self.fine(self.stem(image), condition)
        coarse = self.pool(self.coarse(self.middle(fine, condition), condition))
        patches = self.from_patches(coarse.flatten(2).transpose(1, 2))
        colour = functional.adaptive_avg_pool2d(image, fine.shape[2:])
        there = torch.cat([self.grid.expand(len(fine), -1, -1, -1), colour, fine], 1).flatten(2).transpose(1, 2).float()
        attention = self.maps(fine).flatten(2).float().softmax(-1)
        keys = self.colours(colour), self.places(self.grid)
        sizes = [key.shape[1] for key in keys]
        sought = self.pointers(sentence.tokens, sentence.words, sentence.shown).split(sizes, -1)
        likeness = sum(query @ key.flatten(2) for query, key in zip(sought, keys, strict=True))
        striking = self.striking * (colour.amax(1) - colour.amin(1)).flatten(1)[:, None].float()
        pointing = (_SHARPNESS * likeness + striking).softmax(-1)
        pointed = self.from_pointers(pointing.detach() @ there)
        tokens = torch.cat([patches, self.from_keypoints(attention @ there), pointed], 1)
        return tokens + self.place, (pointing @ there[..., :2]).flatten(1)
