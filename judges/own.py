"""The success that the World itself recorded: a simulator's truth, or the opinion of a model's head for success."""

from simeval.episode import Episode
from simeval.errors import ConfigError
from simeval.judge import Judge, Verdict


class Own(Judge):
    """What was recorded: a success that held for as long as the World asks."""

    fingerprint = "own/1"

    def __call__(self, episode: Episode) -> Verdict:
        """See ``Judge.__call__``; ``ConfigError`` where the World defines no success."""
        if not episode.ending.success_hold:
            raise ConfigError(
                f"world {episode.rollout.world!r} records no success; choose another judge, or leave it out of worlds=…"
            )
        succeeded = episode.succeeded
        return Verdict(succeeded, float(succeeded), reason="the World recorded it" if succeeded else "")
