"""Searches for a good sequence of actions: the cross-entropy method and path-integral control.

Actions are in units of the action space here, -1 to 1 from its lower to its upper bound. Every episode of a batch is
searched for by itself; only the trying out is shared.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from simeval.errors import ConfigError
from simeval.noise import StepKey
from simeval.policy import Memory
from simeval.settings import positive, whole

Values = Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]]
"""Candidates [N, H, A] of each episode -> what each earns [N]; minus infinity where it broke the simulation."""


@dataclass(frozen=True, slots=True)
class Search:
    """What was found for ``n`` episodes: ``plan`` [n, H, A] to act on, what it is ``worth`` [n], and the new memory."""

    plan: np.ndarray
    worth: np.ndarray
    memory: Memory


class Optimiser(ABC):
    """A search for ``horizon`` actions, that begins where the one a step before ended. Its memory is explicit."""

    horizon: int

    @property
    def fingerprint(self) -> str:
        """The kind and all settings, in one line."""
        settings = [f"{name.lstrip('_')}={value!r}" for name, value in sorted(vars(self).items())]
        return " ".join([type(self).__name__, *settings])

    @abstractmethod
    def initial_memory(self, n: int, size: int) -> Memory:
        """The memory of ``n`` episodes about to begin, whose actions have ``size`` numbers."""

    @abstractmethod
    def search(self, values: Values, memory: Memory, keys: Sequence[StepKey]) -> Search:
        """Search for each of ``len(keys)`` episodes; all noise comes from its key."""


def coloured(generator: np.random.Generator, shape: tuple[int, ...], exponent: float) -> np.ndarray:
    """Normal noise [N, H, A] of unit variance, whose power over time falls with frequency f as ``f**-exponent``.

    0 is white noise; 1 to 3 give the smooth sequences that move an arm somewhere (Pinneri et al. 2020, iCEM). The mean
    over time has the power of the lowest frequency.
    """
    white = generator.standard_normal(shape)
    length = shape[1]
    if exponent == 0 or length == 1:
        return white
    gain = np.maximum(np.fft.rfftfreq(length), 1 / length) ** (-exponent / 2)
    both = np.concatenate([gain, gain[1 : (length + 1) // 2]])  # the spectrum of a real signal counts these twice
    gain /= np.sqrt(np.mean(both**2))
    return np.fft.irfft(np.fft.rfft(white, axis=1) * gain[:, None], n=length, axis=1)


def _later(actions: np.ndarray) -> np.ndarray:
    """Actions [..., H, A] as they are one step later; the last is repeated."""
    return np.concatenate([actions[..., 1:, :], actions[..., -1:, :]], axis=-2)


class CrossEntropy(Optimiser):
    """The cross-entropy method, with the improvements of iCEM (Pinneri et al. 2020).

    ``iterations`` times, ``candidates`` are drawn around a mean, and mean and deviation become those of the best
    ``elites``; ``momentum`` is the share of the old that is kept. ``deviation``: the first standard deviation, of a
    range of -1 to 1. The last mean is tried as well, and the best of all that was tried is acted on. The mean of the
    step before, one step later, is where the next search begins.

    iCEM's other parts: ``colour`` of the noise (see ``coloured``; 0: white), ``kept``, the share of the elites that is
    tried again in the next iteration, and one step later in the first of the next step (0: none), and ``decay``, by
    which the number of candidates falls from one iteration to the next, to no fewer than twice the elites (1: it
    stays).
    """

    def __init__(
        self,
        horizon: int = 10,
        candidates: int = 64,
        elites: int = 8,
        iterations: int = 3,
        deviation: float = 0.5,
        momentum: float = 0.1,
        colour: float = 2.0,
        kept: float = 0.3,
        decay: float = 1.25,
    ):
        self.horizon = whole("horizon", horizon)
        self._candidates = whole("candidates", candidates, 2)
        self._elites = whole("elites", elites)
        self._iterations = whole("iterations", iterations)
        self._deviation = positive("deviation", deviation)
        self._momentum, self._colour, self._kept, self._decay = momentum, colour, kept, decay
        if elites >= candidates:
            raise ConfigError(f"elites are fewer than candidates; received elites={elites}, candidates={candidates}")
        if not (0 <= momentum < 1 and 0 <= kept <= 1 and colour >= 0 and decay >= 1):
            raise ConfigError(
                "0 <= momentum < 1, 0 <= kept <= 1, colour >= 0 and decay >= 1 are needed; received "
                f"momentum={momentum}, kept={kept}, colour={colour}, decay={decay}"
            )
        self._reused = round(kept * elites)

    def initial_memory(self, n: int, size: int) -> Memory:
        """``mean`` [n, H, A], ``elites`` to be tried again [n, E, H, A], and whether there are any, ``begun`` [n]."""
        return {
            "mean": np.zeros((n, self.horizon, size)),
            "elites": np.zeros((n, self._reused, self.horizon, size)),
            "begun": np.zeros(n, dtype=bool),
        }

    def search(self, values: Values, memory: Memory, keys: Sequence[StepKey]) -> Search:
        """See ``Optimiser.search``."""
        found = [
            _Best(mean, np.full_like(mean, self._deviation), elites if begun else elites[:0])
            for mean, elites, begun in zip(memory["mean"], memory["elites"], memory["begun"], strict=True)
        ]
        for iteration in range(self._iterations):
            drawn = [self._draw(best, key, iteration) for best, key in zip(found, keys, strict=True)]
            for (best, tried), earned in zip(zip(found, drawn, strict=True), values(drawn), strict=True):
                best.learn(tried, earned, self._elites, self._momentum, self._reused)
        return Search(
            np.stack([best.plan for best in found]),
            np.array([best.worth for best in found]),
            {
                "mean": np.stack([_later(best.mean) for best in found]),
                "elites": np.stack([_later(best.elites) for best in found]),
                "begun": np.ones(len(found), dtype=bool),
            },
        )

    def _draw(self, best: "_Best", key: StepKey, iteration: int) -> np.ndarray:
        count = max(round(self._candidates * self._decay**-iteration), 2 * self._elites)
        noise = coloured(key.generator("candidates", iteration), (count, *best.mean.shape), self._colour)
        tried = [np.clip(best.mean + best.deviation * noise, -1, 1), best.elites]
        if iteration == self._iterations - 1:
            tried.append(best.mean[None])
        return np.concatenate(tried)


class _Best:
    """One episode's search: the distribution that is drawn from, and the best that was tried."""

    def __init__(self, mean: np.ndarray, deviation: np.ndarray, elites: np.ndarray):
        self.mean, self.deviation, self.elites = mean, deviation, elites
        self.plan, self.worth = mean, -np.inf

    def learn(self, tried: np.ndarray, earned: np.ndarray, elites: int, momentum: float, reused: int) -> None:
        """Move towards the best ``elites`` of ``tried`` [N, H, A] by what they ``earned`` [N]."""
        order = np.argsort(-earned, kind="stable")
        if earned[order[0]] > self.worth:
            self.plan, self.worth = tried[order[0]], float(earned[order[0]])
        chosen = tried[[index for index in order[:elites] if np.isfinite(earned[index])]]
        self.mean = momentum * self.mean + (1 - momentum) * chosen.mean(axis=0)
        self.deviation = momentum * self.deviation + (1 - momentum) * chosen.std(axis=0)
        self.elites = np.resize(chosen, (elites, *chosen.shape[1:]))[:reused]


class PathIntegral(Optimiser):
    """Model-predictive path-integral control (MPPI; Williams et al. 2017).

    ``iterations`` times, ``candidates`` are drawn around the plan with standard deviation ``deviation`` (of a range of
    -1 to 1) and ``colour`` (see ``coloured``); the plan becomes their mean, weighted by ``exp(value / temperature)``,
    values in units of their standard deviation over the candidates, so that one temperature serves any scale of reward.
    The plan itself is among them. That of the step before, one step later, is where the next search begins.
    """

    def __init__(
        self,
        horizon: int = 15,
        candidates: int = 64,
        iterations: int = 1,
        deviation: float = 0.5,
        temperature: float = 0.2,
        colour: float = 1.0,
    ):
        self.horizon = whole("horizon", horizon)
        self._candidates = whole("candidates", candidates, 2)
        self._iterations = whole("iterations", iterations)
        self._deviation = positive("deviation", deviation)
        self._temperature = positive("temperature", temperature)
        if colour < 0:
            raise ConfigError(f"colour is 0 (white) or above; received {colour}")
        self._colour = colour

    def initial_memory(self, n: int, size: int) -> Memory:
        """``plan`` [n, H, A]."""
        return {"plan": np.zeros((n, self.horizon, size))}

    def search(self, values: Values, memory: Memory, keys: Sequence[StepKey]) -> Search:
        """See ``Optimiser.search``; the plan is ``worth`` the weighted mean of what its candidates earned."""
        plans = list(memory["plan"])
        worth = np.zeros(len(keys))
        for iteration in range(self._iterations):
            drawn = [self._draw(plan, key, iteration) for plan, key in zip(plans, keys, strict=True)]
            for row, earned in enumerate(values(drawn)):
                sound = np.isfinite(earned)
                tried, earned = drawn[row][sound], earned[sound]
                weights = np.exp((earned - earned.max()) / (self._temperature * max(float(earned.std()), 1e-12)))
                weights /= weights.sum()
                plans[row] = np.clip((weights[:, None, None] * tried).sum(axis=0), -1, 1)
                worth[row] = (weights * earned).sum()
        plan = np.stack(plans)
        return Search(plan, worth, {"plan": _later(plan)})

    def _draw(self, plan: np.ndarray, key: StepKey, iteration: int) -> np.ndarray:
        generator = key.generator("candidates", iteration)
        noise = coloured(generator, (self._candidates - 1, *plan.shape), self._colour)
        return np.concatenate([np.clip(plan + self._deviation * noise, -1, 1), plan[None]])
