"""A classifier of success, learned from traces by ``simeval train classifier=success``."""

import torch

from judges.network import CHECKPOINTS
from judges.sight import Shown
from judges.trainer import step_logits
from learning.checkpoint import content_hash
from learning.devices import device_named, threads_of_torch
from simeval.episode import Episode
from simeval.errors import InstructionError
from simeval.judge import Judge, Verdict


class Classifier(Judge):
    """The classifier in ``checkpoint``, a folder, on ``device`` with so many ``threads`` of torch."""

    def __init__(self, checkpoint: str, device: str = "cpu", threads: int | None = 1):
        folder = CHECKPOINTS.located(checkpoint)
        self._device = device_named(device)
        self._network = CHECKPOINTS.load(folder).to(self._device)
        self._threads = threads
        self._content = content_hash(folder)

    @property
    def fingerprint(self) -> str:
        """The content of the checkpoint."""
        return f"classifier {self._content}"

    @torch.no_grad()
    def __call__(self, episode: Episode) -> Verdict:
        """See ``Judge.__call__``; no verdict on a task that was not learned."""
        network = self._network
        network.sight.check(episode)
        if (task := episode.rollout.start.task) not in network.sight.tasks:
            return Verdict(None, reason=f"task {task!r} was not learned")
        try:
            shown = Shown.of(episode, network.sight, network.vocabulary)
        except InstructionError as error:
            return Verdict(None, reason=str(error))
        with threads_of_torch(self._threads):
            logits = step_logits(network, shown, self._device)
            probability = float(network.calibrated(network.episode(logits).to(self._device)))
        return Verdict(probability > 0.5, probability, reason=f"most like its goal after step {int(logits.argmax())}")
