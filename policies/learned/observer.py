"""What a policy sees and is told, as tokens: words, image tokens under the sentence, and the robot's numbers."""

import torch
from torch import nn
from torch.nn import functional

from policies.learned.features import Features, Inputs
from policies.learned.layers import Block, Context, Eye, split
from policies.learned.words import PADDING, Vocabulary

_MASKED = -1e4


class Observer(nn.Module):
    """A transformer of ``depth`` blocks over the tokens of an observation, and over those that a policy adds to them.

    Images are looked at (``Eye``, of ``width`` channels), and numbers are read, under the sentence: which of several
    things is meant is settled before anything is placed.
    """

    def __init__(self, features: Features, vocabulary: Vocabulary, dim: int, heads: int, depth: int, width: int):
        super().__init__()
        self.words = nn.Embedding(len(vocabulary), dim, padding_idx=PADDING)
        self.word_place = nn.Parameter(0.02 * torch.randn(1, vocabulary.length, dim))
        self.sentence = nn.ModuleList(Block(dim, heads) for _ in range(2))
        self.sentence_norm = nn.LayerNorm(dim)
        self.eyes = nn.ModuleList(Eye(side, width, dim) for side in features.images.values())
        self.body = (
            nn.Sequential(nn.Linear(features.number_dim + dim, 2 * dim), nn.SiLU(), nn.Linear(2 * dim, dim))
            if features.numbers
            else None
        )
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)

    def forward(
        self, inputs: Inputs, numbers: torch.Tensor, added: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Tokens [n, T + k, dim] for ``numbers`` [n, P] on the common scale and k ``added`` tokens [n, k, dim].

        The added ones are the last. Beside the tokens: the additive mask [n, 1, 1, T + k] that hides padding, and the
        sentence [n, dim].
        """
        hidden = inputs.tokens == PADDING
        words = self.words(inputs.tokens) + self.word_place
        mask = torch.zeros_like(hidden, dtype=words.dtype).masked_fill(hidden, _MASKED)[:, None, None]
        for block in self.sentence:
            words = block(words, mask)
        words = self.sentence_norm(words)
        shown = (~hidden).to(words.dtype)[..., None]
        said = (words * shown).sum(1) / shown.sum(1)
        parts = [words]
        for eye, image in zip(self.eyes, inputs.images.values(), strict=True):
            tokens, pointed = eye(image.to(said.dtype) / 127.5 - 1, said, words)
            parts.append(tokens)
            parts[0] = parts[0] + pointed
        if self.body is not None:
            parts.append(self.body(torch.cat([numbers.to(said.dtype), said], 1))[:, None])
        x = torch.cat([*parts, added.to(said.dtype)], 1)
        mask = functional.pad(mask, (0, x.shape[1] - mask.shape[-1]))
        for block in self.blocks:
            x = block(x, mask)
        return self.norm(x), mask, said


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
