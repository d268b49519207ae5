"""How wrong a model is, frame by frame, over windows of recorded episodes."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from worldmodels.interface import NUMBERS
from worldmodels.model import WorldModel
from worldmodels.windows import Window

ARMS = ("imagined", "corrected", "still", "persistence")
"""Each frame foreseen from the ones foreseen before; from the true one before (teacher forcing); with no action done;
and the last known frame itself."""


@dataclass(frozen=True)
class HorizonErrors:
    """Mean square errors [n, K] of n windows over K frames, by arm and by what is seen; NaN past an episode's end.

    ``numbers`` are in variances (``scale``), pictures in full ranges of a colour (of the mean over pixels).
    """

    of: Mapping[str, Mapping[str, np.ndarray]]

    def mean(self, arm: str, name: str) -> np.ndarray:
        """Over the windows: [K]."""
        return np.nanmean(self.of[arm][name], axis=0)

    def psnr(self, arm: str, name: str) -> np.ndarray:
        """Peak signal to noise of pictures [dB]: [K]."""
        return -10 * np.log10(np.maximum(self.mean(arm, name), 1e-12))


@torch.no_grad()
def horizon_errors(model: WorldModel, window: Window, history: int, scale: torch.Tensor) -> HorizonErrors:
    """The errors of ``model`` after the first ``history`` frames of n windows.

    ``scale`` [P] of the numbers; one that is zero leaves a number out. Noise is zero, and what an episode's beginning
    draws is a half: of a model that draws, this is the error of its middle.
    """
    count, device = len(window), window.action.device
    draws, calm = (
        torch.full((count, model.start_draws), 0.5, device=device),
        torch.zeros(count, model.step_draws, device=device),
    )
    frame = [{name: value[:, index] for name, value in window.seen.items()} for index in range(window.frames)]
    state = model.encode(frame[0], window.task, draws)
    for index in range(history - 1):
        state = model.observe(state, window.action[:, index], frame[index + 1], calm)
    still = torch.from_numpy(model.interface.still).to(window.action).repeat(model.interface.frame_skip)
    states = {"imagined": state, "corrected": state, "still": state}
    found: dict[str, dict[str, list[torch.Tensor]]] = {arm: {} for arm in ARMS}
    for index in range(history - 1, window.frames - 1):
        truth = frame[index + 1]
        foreseen = {"persistence": frame[history - 1]}
        for arm, before in states.items():
            action = still.expand(count, -1) if arm == "still" else window.action[:, index]
            states[arm], imagined = model.step(before, action, calm)
            foreseen[arm] = dict(imagined.seen)
            if arm == "corrected":
                states[arm] = model.observe(before, action, truth, calm)
        unreal = ~window.real[:, index]
        for arm, seen in foreseen.items():
            for name, error in _errors(seen, truth, scale).items():
                found[arm].setdefault(name, []).append(error.masked_fill(unreal, torch.nan))
    return HorizonErrors(
        {
            arm: {name: torch.stack(each, 1).cpu().numpy() for name, each in errors.items()}
            for arm, errors in found.items()
        }
    )


def _errors(
    seen: Mapping[str, torch.Tensor], truth: Mapping[str, torch.Tensor], scale: torch.Tensor
) -> dict[str, torch.Tensor]:
    found = {}
    for name, value in truth.items():
        if name == NUMBERS:
            counted = scale > 0
            if counted.any():
                found[name] = ((seen[name] - value)[:, counted] / scale[counted]).square().mean(1)
        else:
            found[name] = ((seen[name].float() - value.float()) / 255).square().mean((1, 2, 3))
    return found
