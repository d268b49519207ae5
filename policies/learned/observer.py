"""What a policy sees and is told, as tokens: words, image tokens under the sentence, and the robot's numbers."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from learning.layers import Block, Context, Readout, split
from learning.words import PADDING, Vocabulary
from policies.learned.features import Features, Inputs
from policies.learned.layers import POINTERS, Eye, Sentence

_MASKED = -1e4


@dataclass(frozen=True, slots=True)
class Observed:
    """``tokens`` [n, T, dim]; the additive ``mask`` [n, 1, 1, T] that hides padding; the sentence ``said`` [n, dim].

    ``foreseen`` [n, 2 P]: the numbers at the ends of the chunk and of the episode, on the common scale; or [n, 0].
    """

    tokens: torch.Tensor
    mask: torch.Tensor
    said: torch.Tensor
    foreseen: torch.Tensor

    def foresight_error(self, later: torch.Tensor) -> torch.Tensor:
        """The mean squared error of what was foreseen of ``later`` [n, 2, P], on the common scale; or 0."""
        return (self.foreseen - later.flatten(1)).square().mean() if self.foreseen.shape[1] else later.new_zeros(())


class Observer(nn.Module):
    """A transformer of ``depth`` blocks over the tokens of an observation, and over those that a policy adds to them.

    Images are looked at (``Eye``, of ``width`` channels), and numbers are read, under the sentence: which of several
    things is meant is settled before anything is placed. Where the robot will be, at the ends of the chunk and
    of the episode, is foreseen from the sentence and the places that it points at alone, and learned beside the
    actions: its present motion, which gives the next actions away and nothing of what was asked for, cannot stand in
    for looking there.
    """

    def __init__(self, features: Features, vocabulary: Vocabulary, dim: int, heads: int, depth: int, width: int):
        super().__init__()
        self.words = nn.Embedding(len(vocabulary), dim, padding_idx=PADDING)
        self.word_place = nn.Parameter(0.02 * torch.randn(1, vocabulary.length, dim))
        self.sentence = nn.ModuleList(Block(dim, heads) for _ in range(2))
        self.sentence_norm = nn.LayerNorm(dim)
        self.eyes = nn.ModuleList(Eye(side, width, dim, len(vocabulary)) for side in features.images.values())
        numbers = features.number_dim
        places = 2 * POINTERS * len(self.eyes)
        self.foresight = _perceptron(places + dim, Readout(dim, 2 * numbers)) if places and numbers else None
        known = numbers if self.foresight is None else 3 * numbers
        self.body = _perceptron(known + dim, nn.Linear(2 * dim, dim)) if numbers else None
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)

    def forward(self, inputs: Inputs, numbers: torch.Tensor, added: torch.Tensor) -> Observed:
        """``numbers`` [n, P] on the common scale, k ``added`` tokens [n, k, dim], which are the last of the tokens."""
        sentence, mask = self._read(inputs.tokens)
        parts, places = [sentence.words], []
        for eye, image in zip(self.eyes, inputs.images.values(), strict=True):
            tokens, pointed = eye(image.to(sentence.said.dtype) / 127.5 - 1, sentence)
            parts.append(tokens)
            places.append(pointed)
        foreseen = numbers[:, :0]
        if self.foresight is not None:
            foreseen = self.foresight(torch.cat([*places, sentence.said], 1)).float()
        if self.body is not None:
            parts.append(self.body(torch.cat([numbers, foreseen.detach(), sentence.said], 1))[:, None])
        x = torch.cat([part.to(sentence.said.dtype) for part in (*parts, added)], 1)
        mask = functional.pad(mask, (0, x.shape[1] - mask.shape[-1]))
        for block in self.blocks:
            x = block(x, mask)
        return Observed(self.norm(x), mask, sentence.said, foreseen)

    def _read(self, tokens: torch.Tensor) -> tuple[Sentence, torch.Tensor]:
        hidden = tokens == PADDING
        words = self.words(tokens) + self.word_place
        mask = torch.zeros_like(hidden, dtype=words.dtype).masked_fill(hidden, _MASKED)[:, None, None]
        for block in self.sentence:
            words = block(words, mask)
        words = self.sentence_norm(words)
        shown = (~hidden).to(words.dtype)[..., None]
        return Sentence(tokens, words, shown, (words * shown).sum(1) / shown.sum(1)), mask


def _perceptron(width: int, last: nn.Linear) -> nn.Module:
    return nn.Sequential(nn.Linear(width, last.in_features), nn.SiLU(), last)


class Reader(nn.Module):
    """Keys and values of tokens, for each of the ``depth`` layers that will attend to them."""

    def __init__(self, dim: int, heads: int, depth: int):
        super().__init__()
        self.heads = heads
        self.layers = nn.ModuleList(nn.Linear(dim, 2 * dim) for _ in range(depth))

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> list[Context]:
        """What each layer reads of ``tokens`` [n, T, dim] under ``mask`` [n, 1, 1, T]."""
        pairs = [layer(tokens).chunk(2, -1) for layer in self.layers]
        return [(split(key, self.heads), split(value, self.heads), mask) for key, value in pairs]
