"""How far success rates in a model of the world can stand for those in the world itself.

Rates in, plain numbers out. ``truth`` are rates in the world, ``model`` those of the same policies in its model.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from simeval.noise import Key
from simeval.stats import Interval, Significance

_EXACT = 8
"""Up to so many policies all orders are enumerated."""
_ORDERS = 19_999
"""Orders drawn beyond that."""
_RESAMPLES = 2000

Statistic = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""A function of ``truth`` and ``model`` [..., k], over the last axis; not a number where it is not defined."""


def pearson(truth: np.ndarray, model: np.ndarray) -> np.ndarray:
    """Correlation of rates [..., k]; not a number where either has no spread."""
    x, y = (np.asarray(rates, dtype=float) for rates in (truth, model))
    x, y = x - x.mean(-1, keepdims=True), y - y.mean(-1, keepdims=True)
    spread = np.sqrt((x**2).sum(-1) * (y**2).sum(-1))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(spread > 1e-12, (x * y).sum(-1) / spread, np.nan)


def spearman(truth: np.ndarray, model: np.ndarray) -> np.ndarray:
    """Correlation of ranks, equal rates sharing theirs."""
    return pearson(*(scipy.stats.rankdata(np.asarray(rates, dtype=float), axis=-1) for rates in (truth, model)))


def mean_maximum_rank_violation(truth: np.ndarray, model: np.ndarray) -> np.ndarray:
    """MMRV (SIMPLER, 2405.05941; WorldGym, 2506.00613): the mean over policies of the largest gap in truth, to any
    other policy, that the model puts in the wrong order. 0: no order is wrong."""
    x, y = (np.asarray(rates, dtype=float) for rates in (truth, model))
    gap = np.abs(x[..., :, None] - x[..., None, :])
    wrong = (y[..., :, None] > y[..., None, :]) != (x[..., :, None] > x[..., None, :])
    return (gap * wrong).max(-1).mean(-1)


def mean_gap(truth: np.ndarray, model: np.ndarray) -> np.ndarray:
    """Mean of model less truth: above 0, the model flatters."""
    return (np.asarray(model, dtype=float) - np.asarray(truth, dtype=float)).mean(-1)


def permutation(truth: Sequence[float], model: Sequence[float], key: Key) -> Significance:
    """Whether rates in the model go with those in truth, beyond chance: one-sided, by the orders of the policies.

    The share of orders whose Pearson correlation is at least that observed: all k! of them up to 8 policies (at best
    1/k!), else drawn ones. Where the correlation is not defined, p is 1.
    """
    x, y = np.asarray(truth, dtype=float), np.asarray(model, dtype=float)
    observed = float(pearson(x, y))
    if math.isnan(observed):
        return Significance(1.0, "permutation test of the correlation, which is not defined")
    if len(x) <= _EXACT:
        orders = np.array(list(itertools.permutations(range(len(x)))))
        reached = pearson(x, y[orders]) >= observed - 1e-9
        return Significance(float(reached.mean()), "exact permutation test of the correlation")
    generator = key.stream("permutation").event(len(x))
    orders = generator.permuted(np.tile(np.arange(len(x)), (_ORDERS, 1)), axis=1)
    reached = pearson(x, y[orders]) >= observed - 1e-9
    return Significance(float((1 + reached.sum()) / (1 + _ORDERS)), "permutation test of the correlation")


def agreement(
    truth: np.ndarray, model: np.ndarray, statistic: Statistic, key: Key, confidence: float = 0.95
) -> Interval:
    """A statistic of the policies' rates, with an interval that resamples starts.

    ``truth`` and ``model`` [k, n]: outcomes of k policies on the same n starts. Percentile bootstrap over starts, the
    same for all policies and both sides. It speaks of these policies, on other starts; not of other policies.
    Resamples where the statistic is not defined are left out.
    """
    x, y = (np.asarray(outcomes, dtype=float) for outcomes in (truth, model))
    estimate = float(statistic(x.mean(1), y.mean(1)))
    n = x.shape[1]
    drawn = key.stream("bootstrap").event("agreement", n).integers(0, n, (_RESAMPLES, n))
    values = statistic(x[:, drawn].mean(-1).T, y[:, drawn].mean(-1).T)
    values = values[np.isfinite(values)]
    tail = (1 - confidence) / 2
    low, high = np.quantile(values, [tail, 1 - tail]) if len(values) else (-math.inf, math.inf)
    return Interval(estimate, float(low), float(high), "bootstrap over starts")


@dataclass(frozen=True, slots=True)
class Combined:
    """A rate in the world estimated with the model's help, beside the one without.

    ``weight``: how far the model is believed. ``worth``: how many rollouts in the world would give, alone, as narrow an
    interval, over how many there were.
    """

    alone: Interval
    combined: Interval
    weight: float
    worth: float


def control_variate(truth: np.ndarray, model: np.ndarray, imagined: np.ndarray, confidence: float = 0.95) -> Combined:
    """Prediction-powered inference with power tuning (PPI++, Angelopoulos, Duchi and Zrnic 2023).

    ``truth`` and ``model`` [n]: outcomes on the same starts in the world and in the model. ``imagined`` [N]: outcomes
    in the model on further starts. The estimate is mean(truth) + w (mean(imagined) - mean(model)), unbiased at any
    fixed w; w = cov / ((1 + n/N) var) has the least variance, so that with many starts the interval is not wider than
    without the model, however bad that is. ``w`` is estimated from the same pairs, which costs of the order of 1/n.
    Intervals are Wilson's, at as many trials as the variance is worth (derived: the paper's are normal, and of no width
    where all trials end alike).
    """
    x, y, more = (np.asarray(outcomes, dtype=float) for outcomes in (truth, model, imagined))
    n, m = len(x), len(more)
    if n < 2 or len(y) != n:
        raise ValueError(f"a control variate needs at least two pairs; received {n} and {len(y)} outcomes")
    spread = float(np.concatenate([y, more]).var(ddof=1))
    weight = 0.0
    if m and spread > 0:
        weight = float(np.clip(np.cov(x, y)[0, 1] / ((1 + n / m) * spread), 0, 1))
    estimate = float(x.mean()) + (weight * float(more.mean() - y.mean()) if m else 0.0)
    own = float(x.var(ddof=1)) / n
    residual = float((x - weight * y).var(ddof=1)) / n
    variance = residual + (weight**2 * float(more.var(ddof=1)) / m if m > 1 else 0.0)
    worth = own / variance if variance > 0 and own > 0 else 1.0
    z = float(scipy.stats.norm.ppf((1 + confidence) / 2))
    rate = min(1.0, max(0.0, estimate))
    return Combined(
        _wilson(float(x.mean()), n, z, "Wilson"),
        _wilson(rate, n * worth, z, "prediction-powered, Wilson at the effective number"),
        weight,
        worth,
    )


def _wilson(rate: float, n: float, z: float, method: str) -> Interval:
    """Wilson's score interval at a number of trials that need not be whole."""
    centre = (rate + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z * math.sqrt(rate * (1 - rate) / n + z**2 / (4 * n**2)) / (1 + z**2 / n)
    return Interval(rate, max(0.0, centre - half), min(1.0, centre + half), method)
