"""What several perturbations do together beyond what each does alone (LIBERO-CTRL, 2609.15940).

Aligned outcomes in, JSON data out. A matched instance is one start, one noise, and one perturbation of each axis;
instances of one start are a cluster: intervals allow for their likeness (:func:`simeval.stats.design_effect`), and
tests flip the signs of whole clusters.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from simeval import stats
from simeval.noise import Key

_DRAWS = Key(0)
_FEWEST_TASKS = 5
"""With fewer tasks an interval over tasks says nothing."""


@dataclass(frozen=True)
class Instances:
    """Outcomes of matched instances: ``singles`` [n, axes], ``combined`` [n] and ``nominal`` [n], all bool.

    ``starts`` [n] and ``tasks`` [n] number the start and the task of each.
    """

    singles: np.ndarray
    combined: np.ndarray
    nominal: np.ndarray
    starts: np.ndarray
    tasks: np.ndarray

    def where(self, rows: np.ndarray) -> "Instances":
        """Those of some rows (bool [n])."""
        return Instances(
            self.singles[rows], self.combined[rows], self.nominal[rows], self.starts[rows], self.tasks[rows]
        )

    @property
    def conjunction(self) -> np.ndarray:
        """``[n]``: every perturbation alone leaves it a success."""
        return self.singles.all(axis=1)


def rate(successes: np.ndarray, clusters: np.ndarray, confidence: float) -> dict[str, Any]:
    """A rate of clustered outcomes, with Wilson's interval at the effective number of them."""
    n, count = len(successes), int(successes.sum())
    if n == 0:
        return {"n": 0, "count": 0, "rate": None, "interval": None}
    found = stats.wilson(count, n, confidence, stats.design_effect(successes, clusters))
    return {"n": n, "count": count, "rate": found.estimate, "interval": [found.low, found.high]}


def change(after: np.ndarray, before: np.ndarray, clusters: np.ndarray, confidence: float) -> dict[str, Any]:
    """From ``before`` to ``after`` on the same instances: what was lost and gained, the difference, and its test.

    Newcombe's paired interval at the effective number of pairs; exact McNemar on lost and gained, and ``p`` of the same
    test by whole clusters, which is the one that decides and where each start has one instance is the same.
    """
    n, lost, gained = len(after), int((before & ~after).sum()), int((after & ~before).sum())
    told = {"n": n, "lost": lost, "gained": gained}
    if n == 0:
        return {**told, "difference": None, "interval": None, "mcnemar": 1.0, "p": 1.0, "test": "exact McNemar"}
    differences = after.astype(int) - before.astype(int)
    found = stats.paired_difference(
        stats.PairedCounts.of(after, before), confidence, stats.design_effect(differences, clusters)
    )
    test = stats.clustered_mcnemar(differences, clusters, _DRAWS)
    return {
        **told,
        "difference": found.estimate,
        "interval": [found.low, found.high],
        "mcnemar": stats.mcnemar(lost, gained).p,
        "p": test.p,
        "test": test.method if test.method == "exact McNemar" else "sign flips of starts",
    }


def combination(instances: Instances, confidence: float = 0.95) -> dict[str, Any]:
    """All that is said of a combination: see docs/matched.md for every formula.

    ``emergent``: each perturbation alone is survived, all together are not; ``compensated``: one alone is not, all
    together are. ``interaction`` is S_sim - S_conj. Of differences that have no closed interval (``dependence``,
    ``total``, ``indep``) it is that of a bootstrap over starts; ``over_tasks``: intervals that resample tasks.
    """
    conjunction, combined, starts = instances.conjunction, instances.combined, instances.starts
    emergent, compensated = conjunction & ~combined, ~conjunction & combined
    found: dict[str, Any] = {"n": len(combined), "starts": len(np.unique(starts))}
    for name, values in (
        ("sim", combined),
        ("conj", conjunction),
        ("emergent", emergent),
        ("compensated", compensated),
        ("change", emergent | compensated),
    ):
        found[name] = rate(values, starts, confidence)
    found["hidden"] = rate(emergent[~combined], starts[~combined], confidence)
    found["interaction"] = change(combined, conjunction, starts, confidence)
    found["against_nominal"] = change(combined, instances.nominal, starts, confidence)
    found |= _products(instances, starts, confidence)
    tasks = len(np.unique(instances.tasks))
    found["over_tasks"] = (
        {"tasks": tasks, **{k: v["interval"] for k, v in _products(instances, instances.tasks, confidence).items()}}
        if tasks >= _FEWEST_TASKS
        else None
    )
    return found


_PRODUCTS = ("emergent_rate", "compensated_rate", "change_rate", "superposition", "indep", "dependence", "total")


def _products(instances: Instances, clusters: np.ndarray, confidence: float) -> dict[str, Any]:
    """Quantities that are products or differences of rates, with intervals that resample ``clusters``."""
    conjunction, combined = instances.conjunction, instances.combined
    b, c = conjunction & ~combined, ~conjunction & combined
    columns = np.column_stack([np.ones(len(combined)), combined, conjunction, b, c, instances.singles])

    def statistics(totals: np.ndarray) -> np.ndarray:
        n, sim, conj, b, c = (totals[:, i] / (totals[:, 0] if i else 1) for i in range(5))
        indep = (totals[:, 5:] / n[:, None]).prod(axis=1)
        return np.stack([b, c, b + c, sim - conj, indep, conj - indep, sim - indep], axis=1)

    if len(np.unique(clusters)) < 2:
        values = statistics(columns.sum(axis=0, keepdims=True))[0] if len(combined) else [None] * len(_PRODUCTS)
        return {name: {"estimate": _plain(v), "interval": None} for name, v in zip(_PRODUCTS, values, strict=True)}
    intervals = stats.bootstrap_totals(columns, clusters, statistics, _DRAWS, confidence)
    return {
        name: {"estimate": found.estimate, "interval": [found.low, found.high] if found.low < found.high else None}
        for name, found in zip(_PRODUCTS, intervals, strict=True)
    }


def _plain(value: Any) -> float | None:
    return None if value is None else float(value)


def excess(
    changed: np.ndarray, clusters: np.ndarray, flipped: np.ndarray, flip_clusters: np.ndarray, confidence: float
) -> dict[str, Any]:
    """A rate of change less the rate at which a replication flips, with an interval that resamples their starts."""
    if not len(changed) or not len(flipped):
        return {"estimate": None, "interval": None}
    columns = np.concatenate(
        [
            np.column_stack([np.ones(len(changed)), changed, np.zeros((len(changed), 2))]),
            np.column_stack([np.zeros((len(flipped), 2)), np.ones(len(flipped)), flipped]),
        ]
    )

    def statistics(totals: np.ndarray) -> np.ndarray:
        return (totals[:, 1] / totals[:, 0] - totals[:, 3] / totals[:, 2])[:, None]

    estimate = float(statistics(columns.sum(axis=0, keepdims=True))[0, 0])
    both = np.concatenate([clusters, flip_clusters])
    if len(np.unique(both)) < 2:
        return {"estimate": estimate, "interval": None}
    (found,) = stats.bootstrap_totals(columns, both, statistics, _DRAWS, confidence)
    return {"estimate": estimate, "interval": [found.low, found.high] if found.low < found.high else None}


def change_by_replication(success: float, flips: float, axes: int) -> float:
    """The outcome change to expect where perturbations do nothing, and every rollout draws its outcome anew (derived).

    Each start succeeds with a probability of its own, Beta-distributed over starts with mean ``success`` and such that
    two independent runs differ with probability ``flips``; then E[p^axes] + E[p] - 2 E[p^(axes + 1)] is the chance that
    a conjunction of ``axes`` runs and one more run differ. Matched conditions share their noise, so it is the most that
    replication gives.
    """
    spread = 2 * success * (1 - success)
    if flips <= 0 or spread <= 0:
        return 0.0
    if flips >= spread:  # no start differs from another
        moment, above = success**axes, success ** (axes + 1)
    else:
        total = (flips / spread) / (1 - flips / spread)
        a = success * total

        def power(k: int) -> float:
            return math.exp(float(special.betaln(a + k, total - a) - special.betaln(a, total - a)))

        moment, above = power(axes), power(axes + 1)
    return moment + success - 2 * above
