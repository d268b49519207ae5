"""Adaptive allocation against uniform, at equal budgets, under simulated truth: widths of intervals, and coverage.

    python benchmarks/allocation.py

Cells are success rates such as a matched study has: most near 1, some in the middle, few near 0. Each study spends the
same budget; the interval of every cell is Wilson's.
"""

import argparse

import numpy as np

from simeval import stats
from simeval.allocation import Beliefs
from simeval.noise import Key

FLOOR = 8
STUDIES = {
    "six axes, mostly robust": [
        0.99,
        0.98,
        0.98,
        0.97,
        0.97,
        0.95,
        0.95,
        0.93,
        0.9,
        0.9,
        0.85,
        0.8,
        0.75,
        0.7,
        0.6,
        0.5,
        0.4,
        0.2,
    ],
    "even": [0.05, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95, 0.99],
    "all hard": [0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65],
}


def outcomes(rates: np.ndarray, budget: int, studies: int, adaptive: bool, key: Key) -> Beliefs:
    """Successes and counts ``[studies, cells]`` after the budget is spent, in rounds of four instances a cell."""
    cells = len(rates)
    generator = key.stream("benchmark").event("allocation", budget, int(adaptive))
    beliefs, rows = Beliefs(studies, cells), np.arange(studies)
    beliefs.learn(generator.binomial(FLOOR, rates, (studies, cells)), np.full((studies, cells), FLOOR))
    left, number = budget - FLOOR * cells, 0
    while left:
        added = np.zeros((studies, cells), dtype=int)
        for _ in range(min(left, 4 * cells)):
            chosen = (
                beliefs.widest(np.ones((studies, cells), dtype=bool)) if adaptive else np.full(studies, number % cells)
            )
            beliefs.expect(chosen)
            added[rows, chosen] += 1
            left, number = left - 1, number + 1
        beliefs.learn(generator.binomial(added, rates), added)
    return beliefs


def judged(beliefs: Beliefs, rates: np.ndarray) -> tuple[float, float, float, float]:
    """Mean over studies of the widest and of the mean interval [points]; coverage, of all cells and of the worst."""
    ends = [
        [stats.wilson(int(s), int(n)) for s, n in zip(*study, strict=True)]
        for study in zip(beliefs.successes, beliefs.counts, strict=True)
    ]
    widths = 100 * np.array([[end.high - end.low for end in study] for study in ends])
    hits = np.array([[end.low <= rate <= end.high for end, rate in zip(s, rates, strict=True)] for s in ends])
    return widths.max(axis=1).mean(), widths.mean(), 100 * hits.mean(), 100 * hits.mean(axis=0).min()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=1000)
    given = parser.parse_args()
    error = 100 * np.sqrt(0.05 * 0.95 / given.studies)
    print(f"{given.studies} studies each; Monte Carlo error of one cell's coverage {error:.1f} points\n")
    print("| cells | rollouts a cell | allocation | widest interval | mean interval | coverage | of the worst cell |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, listed in STUDIES.items():
        rates = np.array(listed)
        for each in (20, 50):
            for adaptive in (False, True):
                beliefs = outcomes(rates, each * len(rates), given.studies, adaptive, Key(0))
                widest, mean, covered, worst = judged(beliefs, rates)
                how = "adaptive" if adaptive else "uniform"
                print(f"| {name} | {each} | {how} | {widest:.1f} | {mean:.1f} | {covered:.1f} % | {worst:.1f} % |")


if __name__ == "__main__":
    main()
