"""Intervals and tests for success rates and returns, each with its source.

Counts in, plain numbers out; nothing here knows what an episode is. All intervals are two-sided, at ``confidence``
(0.95 unless told), and all tests are two-sided.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy  # not scipy.stats, which loads when it is used: it takes longer than all the rest of a command

from simeval.noise import Key

_EXACT_PAIRS = 14
"""Up to so many paired differences all their sign patterns are enumerated."""
_SIGN_PATTERNS = 19_999
"""Sign patterns drawn beyond that: twice the number of the largest enumeration."""
_CHUNK = 4_000_000
_RESAMPLES = 2000
"""Resamples of :func:`bootstrap_totals`."""
_BARNARD_LIMIT = 1_000_000
"""The most cells of the table of outcomes that the exact unpaired test enumerates."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval ``[low, high]`` around ``estimate``, and the name of its method."""

    estimate: float
    low: float
    high: float
    method: str


@dataclass(frozen=True, slots=True)
class Significance:
    """A two-sided p-value, its mid-p variant where the test has one, and the name of the test."""

    p: float
    method: str
    mid_p: float | None = None


def wilson(successes: int, n: int, confidence: float = 0.95, design_effect: float = 1.0) -> Interval:
    """Wilson's score interval for a proportion (Wilson 1927; method 3 of Newcombe, Stat Med 17:857, 1998).

    ``design_effect``: that of clustered outcomes (:func:`design_effect`), which ``n`` is divided by.
    """
    _check_counts(successes, n)
    z = _z(confidence)
    p, effective = successes / n, n / design_effect
    centre = p + z * z / (2 * effective)
    spread = z * math.sqrt(p * (1 - p) / effective + z * z / (4 * effective * effective))
    scale = 1 + z * z / effective
    low = 0.0 if p == 0 else (centre - spread) / scale
    high = 1.0 if p == 1 else (centre + spread) / scale
    return Interval(p, low, high, "Wilson")


def clopper_pearson(successes: int, n: int, confidence: float = 0.95) -> Interval:
    """The exact interval for a proportion, never covering less than ``confidence`` (Clopper and Pearson 1934)."""
    _check_counts(successes, n)
    tail = (1 - _checked(confidence)) / 2
    low = 0.0 if successes == 0 else float(scipy.stats.beta.ppf(tail, successes, n - successes + 1))
    high = 1.0 if successes == n else float(scipy.stats.beta.isf(tail, successes + 1, n - successes))
    return Interval(successes / n, low, high, "Clopper–Pearson")


@dataclass(frozen=True, slots=True)
class PairedCounts:
    """Outcomes of two policies on the same instances: both succeed, only the first, only the second, neither."""

    both: int
    only_first: int
    only_second: int
    neither: int

    def __post_init__(self) -> None:
        if min(self.both, self.only_first, self.only_second, self.neither) < 0:
            raise ValueError(f"counts of pairs cannot be negative; received {self}")

    @property
    def n(self) -> int:
        """How many pairs."""
        return self.both + self.only_first + self.only_second + self.neither

    @classmethod
    def of(cls, first: Sequence[bool] | np.ndarray, second: Sequence[bool] | np.ndarray) -> "PairedCounts":
        """The counts of two aligned lists of outcomes."""
        a, b = np.asarray(first, dtype=bool), np.asarray(second, dtype=bool)
        if a.shape != b.shape or a.ndim != 1:
            raise ValueError(f"paired outcomes must be aligned lists; received shapes {a.shape} and {b.shape}")
        return cls(int((a & b).sum()), int((a & ~b).sum()), int((~a & b).sum()), int((~a & ~b).sum()))


def mcnemar(only_first: int, only_second: int) -> Significance:
    """McNemar's exact test that two paired proportions are equal, from the discordant pairs alone.

    The conditional binomial p-value, and its mid-p variant, which is less conservative and rarely exceeds the level
    (Fagerland, Lydersen and Laake, BMC Med Res Methodol 13:91, 2013). Without discordant pairs both are 1.
    """
    if min(only_first, only_second) < 0:
        raise ValueError(f"discordant pairs cannot be negative; received {only_first} and {only_second}")
    n = only_first + only_second
    few = min(only_first, only_second)
    tail = float(scipy.stats.binom.cdf(few, n, 0.5))
    p = min(1.0, 2 * tail)
    observed = float(scipy.stats.binom.pmf(few, n, 0.5))
    if n == 0:
        mid_p = 1.0
    elif only_first == only_second:  # the central outcome: all others are as extreme, and half of its own counts
        mid_p = 1.0 - observed / 2
    else:
        mid_p = 2 * tail - observed
    return Significance(p, "exact McNemar", mid_p)


def clustered_mcnemar(differences: np.ndarray, clusters: np.ndarray, key: Key) -> Significance:
    """The test that paired outcomes differ equally often either way, where pairs of one cluster may be alike.

    ``differences`` [n] of outcomes (-1, 0 or 1) in ``clusters`` [n] (the starts that pairs share). The signs of whole
    clusters are flipped (:func:`sign_flip`); where every cluster tells the same amount that is McNemar's exact test.
    """
    _, index = np.unique(clusters, return_inverse=True)
    sums = np.bincount(index, weights=differences) if len(index) else np.zeros(0)
    told = sums[sums != 0]
    if len(np.unique(np.abs(told))) < 2:
        return mcnemar(int((told > 0).sum()), int((told < 0).sum()))
    return sign_flip(told, key)[1]


def design_effect(values: np.ndarray, clusters: np.ndarray) -> float:
    """By how much the variance of a mean of ``values`` [n] exceeds that of independent ones; at least 1.

    The ratio estimator's variance between ``clusters`` [n] over that of independent draws (Rao and Scott, Biometrics
    48:577, 1992). Values that do not vary tell nothing of how alike a cluster is: then each cluster counts once.
    """
    x = np.asarray(values, dtype=float)
    _, index, sizes = np.unique(clusters, return_inverse=True, return_counts=True)
    if len(x) == len(sizes) or len(sizes) < 2:
        return 1.0
    spread = float(x.var())
    if spread == 0:
        return len(x) / len(sizes)
    between = np.bincount(index, weights=x - x.mean())
    return max(1.0, len(sizes) / (len(sizes) - 1) * float((between**2).sum()) / (len(x) * spread))


def paired_difference(counts: PairedCounts, confidence: float = 0.95, design_effect: float = 1.0) -> Interval:
    """First minus second success rate of paired outcomes, with Newcombe's square-and-add score interval.

    Method 10 of Newcombe, Stat Med 17:2635, 1998: Wilson intervals of the two rates, combined with the
    continuity-corrected correlation phi of the outcomes. ``design_effect``: as for :func:`wilson`.
    """
    n = counts.n
    if n == 0:
        raise ValueError("a paired difference needs at least one pair; received none")
    first, second = counts.both + counts.only_first, counts.both + counts.only_second
    a, b = (wilson(successes, n, confidence, design_effect) for successes in (first, second))
    phi = _corrected_phi(counts)
    difference = (counts.only_first - counts.only_second) / n
    low = difference - _combine(a.estimate - a.low, b.high - b.estimate, phi)
    high = difference + _combine(a.high - a.estimate, b.estimate - b.low, phi)
    return Interval(difference, max(low, -1.0), min(high, 1.0), "Newcombe paired (method 10)")


def _corrected_phi(counts: PairedCounts) -> float:
    n, first, second = counts.n, counts.both + counts.only_first, counts.both + counts.only_second
    margins = first * (n - first) * second * (n - second)
    if margins == 0:
        return 0.0
    cross = counts.both * counts.neither - counts.only_first * counts.only_second
    corrected = max(cross - n / 2, 0.0) if cross > 0 else cross
    return corrected / math.sqrt(margins)


def _combine(x: float, y: float, phi: float) -> float:
    return math.sqrt(max(x * x - 2 * phi * x * y + y * y, 0.0))


def unpaired_difference(successes_a: int, n_a: int, successes_b: int, n_b: int, confidence: float = 0.95) -> Interval:
    """First minus second success rate of independent samples, with Newcombe's hybrid score interval.

    Method 10 of Newcombe, Stat Med 17:873, 1998.
    """
    a, b = wilson(successes_a, n_a, confidence), wilson(successes_b, n_b, confidence)
    difference = a.estimate - b.estimate
    low = difference - _combine(a.estimate - a.low, b.high - b.estimate, 0.0)
    high = difference + _combine(a.high - a.estimate, b.estimate - b.low, 0.0)
    return Interval(difference, low, high, "Newcombe unpaired (hybrid score)")


def barnard(successes_a: int, n_a: int, successes_b: int, n_b: int) -> Significance:
    """Barnard's exact unconditional test that two independent proportions are equal (Barnard 1945; pooled Wald order).

    Beyond a million possible outcomes, where enumeration is slow and the approximation is good, the pooled z test.
    """
    _check_counts(successes_a, n_a)
    _check_counts(successes_b, n_b)
    total = successes_a + successes_b
    if total in (0, n_a + n_b):
        return Significance(1.0, "Barnard exact")
    if n_a * n_b <= _BARNARD_LIMIT:
        table = [[successes_a, successes_b], [n_a - successes_a, n_b - successes_b]]
        return Significance(min(1.0, float(scipy.stats.barnard_exact(table).pvalue)), "Barnard exact")
    pooled = total / (n_a + n_b)
    z = (successes_a / n_a - successes_b / n_b) / math.sqrt(pooled * (1 - pooled) * (1 / n_a + 1 / n_b))
    return Significance(float(2 * scipy.stats.norm.sf(abs(z))), "pooled z")


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p-values, in the order given: family-wise error under any dependence (Holm 1979)."""
    p = np.asarray(p_values, dtype=float)
    order = np.argsort(p, kind="stable")
    scaled = p[order] * np.arange(len(p), 0, -1)
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(scaled))
    return [float(value) for value in adjusted]


def mean_interval(values: Sequence[float] | np.ndarray, confidence: float = 0.95) -> Interval:
    """A mean with Student's t interval; of one value, the interval is the whole line. Paired: pass the differences."""
    x = _sample(values)
    mean = float(x.mean())
    if len(x) == 1:
        return Interval(mean, -math.inf, math.inf, "Student t")
    half = float(scipy.stats.t.isf((1 - _checked(confidence)) / 2, len(x) - 1) * x.std(ddof=1) / math.sqrt(len(x)))
    return Interval(mean, mean - half, mean + half, "Student t")


def sign_flip(
    differences: Sequence[float] | np.ndarray, key: Key, confidence: float = 0.95
) -> tuple[Interval, Significance]:
    """A mean of paired differences: the sign-flip permutation test that it is zero, and the interval of that test.

    Where nothing tells two policies apart, a pair's difference is as likely to have the other sign, whatever its
    distribution (Fisher, The Design of Experiments, 1935, section 21; Ernst, Stat Sci 19:676, 2004). The interval holds
    the values that the test does not reject, so the two never disagree: its ends are means of subsets of the
    differences (Hartigan, JASA 64:1303, 1969). Exact for differences symmetric about their mean; no such interval is
    finite below 6 pairs (at 0.95), and then the whole line is given. Up to 14 pairs every pattern of signs is
    enumerated; beyond, 19,999 patterns are drawn, a function of ``key`` and of how many pairs there are, and the
    observed one is counted with them (Phipson and Smyth, Stat Appl Genet Mol Biol 9:39, 2010).
    """
    x = _sample(differences)
    estimate = float(x.mean())
    means = _subset_means(x - estimate, key)
    patterns = len(means) + 1
    # A subset whose mean has the sign opposite to the estimate's is one whose flip makes the sum at least as large.
    slack = 1e-12 * max(1e-300, float(np.abs(x).max()))
    beyond = 1 + min(int((means <= slack - estimate).sum()), int((means >= -slack - estimate).sum()))
    p = min(1.0, 2 * beyond / patterns)
    rank = math.floor((1 - _checked(confidence)) / 2 * patterns)
    low, high = -math.inf, math.inf
    if rank >= 1:
        ordered = np.sort(means)
        low, high = estimate + float(ordered[rank - 1]), estimate + float(ordered[-rank])
    return Interval(estimate, low, high, "sign flips"), Significance(p, "sign-flip")


def _subset_means(x: np.ndarray, key: Key) -> np.ndarray:
    """Means of every nonempty subset of ``x`` [n], or of many drawn ones where ``n`` is large."""
    n = len(x)
    if n <= _EXACT_PAIRS:
        chosen = (np.arange(1, 2**n)[:, None] >> np.arange(n)) & 1
        return chosen @ x / chosen.sum(axis=1)
    generator = key.stream("permutation").event("signs", n)
    found = []
    rows = max(1, _CHUNK // n)
    for begin in range(0, _SIGN_PATTERNS, rows):
        chosen = generator.integers(0, 2, (min(rows, _SIGN_PATTERNS - begin), n), dtype=np.uint8)
        sizes = chosen.sum(axis=1, dtype=np.int64)
        found.append((chosen.astype(np.float64) @ x)[sizes > 0] / sizes[sizes > 0])
    return np.concatenate(found)


def welch(
    first: Sequence[float] | np.ndarray, second: Sequence[float] | np.ndarray, confidence: float = 0.95
) -> tuple[Interval, Significance]:
    """First minus second mean of independent samples of unequal variance: Welch's interval and test that agree with it.

    Welch, Biometrika 34:28, 1947. Where a sample has one value, or neither spreads, the interval is the whole line, and
    the test the smallest p that a permutation of such samples could give (1 if the means are equal).
    """
    a, b = _sample(first), _sample(second)
    difference = float(a.mean() - b.mean())
    parts = [float(x.var(ddof=1)) / len(x) if len(x) > 1 else math.nan for x in (a, b)]
    error = sum(parts)
    if not error > 0:
        separate = max(a.min(), b.min()) > min(a.max(), b.max())
        least = min(1.0, 2 / math.comb(len(a) + len(b), len(a)))
        return Interval(difference, -math.inf, math.inf, "Welch"), Significance(
            least if separate else 1.0, "permutation"
        )
    freedom = error**2 / sum(part**2 / (len(x) - 1) for part, x in zip(parts, (a, b), strict=True))
    half = float(scipy.stats.t.isf((1 - _checked(confidence)) / 2, freedom)) * math.sqrt(error)
    p = float(2 * scipy.stats.t.sf(abs(difference) / math.sqrt(error), freedom))
    return Interval(difference, difference - half, difference + half, "Welch"), Significance(p, "Welch")


def bootstrap_mean(
    values: Sequence[float] | np.ndarray, key: Key, confidence: float = 0.95, resamples: int = 2000
) -> Interval:
    """A mean with its percentile bootstrap interval (Efron 1979), for values far from normal.

    The resamples are a function of ``key`` and of how many values there are. Below about 20 values it covers less
    than it says; prefer :func:`mean_interval` there.
    """
    x = _sample(values)
    generator = key.stream("bootstrap").event("mean", len(x))
    means = np.fromiter(
        (x[generator.integers(0, len(x), len(x))].mean() for _ in range(resamples)), dtype=float, count=resamples
    )
    return _percentiles(float(x.mean()), means, confidence, "percentile bootstrap")


def cluster_bootstrap(
    clusters: Sequence[Sequence[float] | np.ndarray], key: Key, confidence: float = 0.95, resamples: int = 10_000
) -> Interval:
    """The mean over clusters (tasks) of each cluster's mean, with an interval that resamples whole clusters.

    It says what to expect of *other tasks like these*, where a binomial interval speaks of these tasks alone
    (Davison and Hinkley 1997, section 3.8; clusters with replacement, their episodes kept). With fewer than about ten
    clusters it covers less than it says.
    """
    means = np.array([_sample(cluster).mean() for cluster in clusters], dtype=float)
    if len(means) < 2:
        raise ValueError(f"a cluster bootstrap needs at least two clusters; received {len(means)}")
    generator = key.stream("bootstrap").event("cluster", len(means))
    drawn = means[generator.integers(0, len(means), (resamples, len(means)))].mean(axis=1)
    return _percentiles(float(means.mean()), drawn, confidence, "cluster bootstrap over tasks")


def bootstrap_totals(
    columns: np.ndarray,
    clusters: np.ndarray,
    statistics: Callable[[np.ndarray], np.ndarray],
    key: Key,
    confidence: float = 0.95,
) -> list[Interval]:
    """Functions of totals, with intervals that resample whole clusters, their rows kept (Davison and Hinkley 1997).

    ``columns`` [n, q] of rows in ``clusters`` [n]; ``statistics`` maps totals [r, q] to values [r, m]. With fewer than
    about ten clusters they cover less than they say. Resamples in which a value is not finite, as where all is divided
    by nothing, are left out. A function of ``key`` and of how many clusters there are.
    """
    _, index, sizes = np.unique(clusters, return_inverse=True, return_counts=True)
    if len(sizes) < 2:
        raise ValueError(f"a cluster bootstrap needs at least two clusters; received {len(sizes)}")
    sums = np.stack([np.bincount(index, weights=column) for column in np.asarray(columns, dtype=float).T], axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        estimates = statistics(sums.sum(axis=0, keepdims=True))[0]
        draws = statistics(_resamples(key, len(sums)) @ sums)
    found = []
    for estimate, values in zip(estimates.tolist(), draws.T, strict=True):
        finite = values[np.isfinite(values)]
        if len(finite):
            found.append(_percentiles(estimate, finite, confidence, "cluster bootstrap"))
        else:
            found.append(Interval(estimate, -math.inf, math.inf, "cluster bootstrap"))
    return found


@lru_cache(4)
def _resamples(key: Key, clusters: int) -> np.ndarray:
    """How often each cluster is drawn in each resample ``[r, clusters]``."""
    generator = key.stream("bootstrap").event("totals", clusters)
    return generator.multinomial(clusters, np.full(clusters, 1 / clusters), _RESAMPLES).astype(float)


def _percentiles(estimate: float, draws: np.ndarray, confidence: float, method: str) -> Interval:
    tail = (1 - _checked(confidence)) / 2
    low, high = np.quantile(draws, [tail, 1 - tail])
    return Interval(estimate, float(low), float(high), method)


def episodes_needed(rate_a: float, rate_b: float, power: float = 0.8, confidence: float = 0.95) -> int:
    """Episodes per policy for an unpaired comparison to detect ``rate_a`` against ``rate_b`` with ``power``.

    The normal approximation with a pooled null variance (Fleiss, Levin and Paik 2003, section 4.2, uncorrected).
    """
    difference = abs(rate_a - rate_b)
    if difference == 0:
        raise ValueError(f"no number of episodes detects a difference of zero; received two rates of {rate_a}")
    pooled = (rate_a + rate_b) / 2
    null = math.sqrt(2 * pooled * (1 - pooled))
    alternative = math.sqrt(rate_a * (1 - rate_a) + rate_b * (1 - rate_b))
    root = (_z(confidence) * null + float(scipy.stats.norm.ppf(power)) * alternative) / difference
    return max(1, math.ceil(root * root))


def pairs_needed(difference: float, discordance: float, power: float = 0.8, confidence: float = 0.95) -> int:
    """Pairs for a paired comparison to detect a ``difference`` of success rates with ``power``.

    ``discordance`` is the share of pairs whose outcomes differ, at least ``|difference|``. The normal approximation
    to McNemar's test (Connor, Biometrics 43:207, 1987).
    """
    gap = abs(difference)
    if not 0 < gap <= 1:
        raise ValueError(f"a difference to detect lies in (0, 1]; received {difference}")
    share = min(max(discordance, gap), 1.0)
    spread = math.sqrt(max(share - gap * gap, 0.0))
    root = _z(confidence) * math.sqrt(share) + float(scipy.stats.norm.ppf(power)) * spread
    return max(1, math.ceil(root * root / (gap * gap)))


def minimum_detectable_effect(n: int, rate: float, power: float = 0.8, confidence: float = 0.95) -> float | None:
    """The smallest gain over ``rate`` that ``n`` unpaired episodes per policy detect with ``power``; none if none is.

    The inverse of :func:`episodes_needed`.
    """
    _check_counts(0, n)
    return _smallest(lambda gap: episodes_needed(rate, rate + gap, power, confidence) <= n, 1.0 - rate)


def minimum_detectable_paired_effect(
    n: int, discordance: float, power: float = 0.8, confidence: float = 0.95
) -> float | None:
    """The smallest difference that ``n`` pairs, of which a share ``discordance`` differ, detect with ``power``.

    The inverse of :func:`pairs_needed`; none if even a difference as large as the discordance goes undetected.
    """
    _check_counts(0, n)
    return _smallest(lambda gap: pairs_needed(gap, discordance, power, confidence) <= n, discordance)


def _smallest(detects: Callable[[float], bool], largest: float) -> float | None:
    if largest <= 0 or not detects(largest):
        return None
    low, high = 0.0, largest
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if middle > 0 and detects(middle) else (middle, high)
    return high


def _z(confidence: float) -> float:
    return float(scipy.stats.norm.isf((1 - _checked(confidence)) / 2))


def _checked(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence lies strictly between 0 and 1, e.g. 0.95; received {confidence}")
    return confidence


def _check_counts(successes: int, n: int) -> None:
    if n < 1:
        raise ValueError(f"a success rate needs at least one episode; received n={n}")
    if not 0 <= successes <= n:
        raise ValueError(f"successes lie between 0 and n; received {successes} of {n}")


def _sample(values: Sequence[float] | np.ndarray) -> np.ndarray:
    x = np.asarray(values, dtype=float)
    if x.ndim != 1 or len(x) == 0:
        raise ValueError(f"a mean needs a list of at least one value; received shape {x.shape}")
    return x
