"""Instructions as words: a vocabulary learned from the sentences of recorded episodes."""

import re
from collections.abc import Iterable, Sequence

import torch

from simeval.errors import InstructionError

PADDING, UNKNOWN = 0, 1
_ROOM = 12
"""Words that a sentence may have more than the longest that was learned."""


def words_of(sentence: str) -> list[str]:
    """A sentence's words, in lower case, without punctuation."""
    return re.findall(r"[^\W_]+", sentence.lower())


class Vocabulary:
    """Words with numbers from 2; 0 is padding and 1 any other word."""

    def __init__(self, words: Sequence[str], length: int):
        self.words = tuple(words)
        self.length = length
        """Words in a sentence, at most."""
        self._numbers = {word: number for number, word in enumerate(self.words, UNKNOWN + 1)}

    @classmethod
    def of(cls, sentences: Iterable[str]) -> "Vocabulary":
        """The words of some sentences, and room for longer ones than these."""
        split = [words_of(sentence) for sentence in sentences]
        return cls(sorted({word for words in split for word in words}), max(map(len, split), default=0) + _ROOM)

    def __len__(self) -> int:
        """Numbers in use, padding and unknown included."""
        return len(self.words) + UNKNOWN + 1

    def encode(self, sentences: Sequence[str]) -> torch.Tensor:
        """Numbers of the words [n, length], int64; ``InstructionError`` for a sentence too long, or without words."""
        rows = torch.zeros(len(sentences), self.length, dtype=torch.int64)
        for row, sentence in enumerate(sentences):
            words = words_of(sentence)
            if not 0 < len(words) <= self.length:
                raise InstructionError(
                    f"the instruction {sentence!r} has {len(words)} words; this vocabulary reads 1 to {self.length}"
                )
            rows[row, : len(words)] = torch.tensor([self._numbers.get(word, UNKNOWN) for word in words])
        return rows
