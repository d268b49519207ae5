"""Statistics of a model's rates against the truth: definitions, chance, and unbiased combination."""

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from simeval.agreement import (
    agreement,
    control_variate,
    mean_gap,
    mean_maximum_rank_violation,
    pearson,
    permutation,
    spearman,
)
from simeval.noise import Key


def test_correlations_are_those_of_scipy() -> None:
    generator = np.random.default_rng(0)
    for _ in range(20):
        x, y = generator.integers(0, 5, (2, 8)) / 4
        if len(set(x)) > 1 and len(set(y)) > 1:
            assert float(pearson(x, y)) == pytest.approx(scipy_stats.pearsonr(x, y).statistic)
            assert float(spearman(x, y)) == pytest.approx(scipy_stats.spearmanr(x, y).statistic)
    assert math.isnan(pearson(np.array([0.1, 0.9]), np.array([0.5, 0.5])))


def test_rank_violation_weighs_wrong_orders_by_the_gap_in_truth() -> None:
    truth, model = np.array([0.9, 0.5, 0.1]), np.array([0.2, 0.6, 0.1])
    # 0.9 and 0.5 are in the wrong order, a gap of 0.4 for both; 0.1 is last in both
    assert float(mean_maximum_rank_violation(truth, model)) == pytest.approx((0.4 + 0.4 + 0) / 3)
    swapped = float(mean_maximum_rank_violation(model, truth))
    assert swapped == pytest.approx((0.4 + 0.4 + 0) / 3)
    far = np.array([0.9, 0.85, 0.1])
    assert float(mean_maximum_rank_violation(far, model)) == pytest.approx(0.1 / 3)
    assert float(mean_maximum_rank_violation(model, far)) != pytest.approx(0.1 / 3)  # the order of arguments matters
    assert float(mean_maximum_rank_violation(truth, truth / 2)) == 0
    assert float(mean_gap(truth, truth + 0.1)) == pytest.approx(0.1)


def test_a_model_that_knows_nothing_is_significant_as_often_as_chance_has_it() -> None:
    generator = np.random.default_rng(1)
    p = [permutation(*generator.random((2, 5)), Key(0)).p for _ in range(400)]
    assert np.mean(np.array(p) <= 0.05) < 0.085
    assert permutation([0.1, 0.4, 0.6, 0.9], [0.2, 0.3, 0.5, 0.6], Key(0)).p == pytest.approx(1 / 24)
    assert permutation([0.1, 0.4, 0.6], [0.5, 0.5, 0.5], Key(0)).p == 1
    many = np.linspace(0, 1, 12)
    assert permutation(many, many, Key(0)).p == pytest.approx(1 / 20_000)


def test_intervals_of_agreement_hold_the_truth() -> None:
    generator, rates, held = np.random.default_rng(2), np.array([0.2, 0.5, 0.8]), 0
    for number in range(120):
        truth = generator.random((3, 60)) < rates[:, None]
        model = generator.random((3, 60)) < rates[:, None] + 0.1
        found = agreement(truth, model, mean_gap, Key(number))
        held += found.low <= 0.1 <= found.high
    assert held >= 105


def test_a_combined_estimate_is_unbiased_and_narrower_the_better_the_model() -> None:
    generator = np.random.default_rng(3)
    for agree, narrower in ((0.95, True), (0.5, False)):
        centres, covered, worth = [], 0, []
        for _ in range(300):

            def both(n: int, agree: float = agree) -> tuple[np.ndarray, np.ndarray]:
                truth = generator.random(n) < 0.6
                return truth, np.where(generator.random(n) < agree, truth, ~truth)

            truth, model = both(80)
            found = control_variate(truth, model, both(1000)[1])
            centres.append(found.combined.estimate)
            covered += found.combined.low <= 0.6 <= found.combined.high
            worth.append(found.worth)
        assert abs(np.mean(centres) - 0.6) < 0.012
        assert covered >= 270
        assert np.mean(worth) > 2 if narrower else 0.97 < np.mean(worth) < 1.1


def test_without_imagined_starts_or_spread_the_world_speaks_alone() -> None:
    truth = np.array([1, 0, 1, 1, 0, 1], dtype=bool)
    for model, more in ((truth, np.zeros(0)), (np.zeros(6), np.zeros(50))):
        found = control_variate(truth, model, more)
        assert found.combined.estimate == found.alone.estimate == pytest.approx(4 / 6)
        assert (found.weight, found.worth) == (0, pytest.approx(1))
    with pytest.raises(ValueError, match="two pairs"):
        control_variate(np.ones(1), np.ones(1), np.ones(5))
