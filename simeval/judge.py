"""A judge says whether a recorded episode succeeded by looking at it: the interface, and what it finds."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simeval.episode import Episode


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a judge finds of an episode.

    ``success``: whether it succeeded, or none where the judge came to no verdict, which is no failure. ``probability``
    of success, 0 to 1, where the judge gives one. ``votes``: how many were for success, against it, and unanswered,
    where it votes. ``reason``: in words.
    """

    success: bool | None
    probability: float | None = None
    votes: tuple[int, int, int] | None = None
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """The same as JSON data."""
        votes = None if self.votes is None else list(self.votes)
        return {"success": self.success, "probability": self.probability, "votes": votes, "reason": self.reason}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Verdict":
        """The inverse of :meth:`to_json`; ``ValueError`` for what is no verdict."""
        success, probability, votes = data["success"], data["probability"], data["votes"]
        if not (success is None or isinstance(success, bool)):
            raise ValueError(f"success is {success!r}")
        if probability is not None and not 0 <= float(probability) <= 1:
            raise ValueError(f"probability is {probability!r}")
        if votes is not None and (len(votes) != 3 or not all(isinstance(each, int) and each >= 0 for each in votes)):
            raise ValueError(f"votes are {votes!r}")
        return cls(
            success,
            None if probability is None else float(probability),
            None if votes is None else (votes[0], votes[1], votes[2]),
            str(data["reason"]),
        )


class Judge(ABC):
    """Judges episodes one by one. Its verdict is a function of the episode alone, as far as it can make it one."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """What its verdicts depend on: verdicts of two fingerprints are never mixed."""

    @abstractmethod
    def __call__(self, episode: Episode) -> Verdict:
        """The verdict on a finished episode, from its reset on.

        ``ConfigError`` where the episode does not have what the judge looks at.
        """

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Let go of what it holds."""
