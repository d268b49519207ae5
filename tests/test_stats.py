"""Intervals and tests against published worked examples, exact sums and coverage simulations with fixed keys."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from simeval import stats
from simeval.noise import Key
from simeval.stats import PairedCounts

counts = st.integers(0, 60)


# Newcombe, Stat Med 17:857 (1998), table I: 95 % intervals of methods 3 (Wilson) and 5 (Clopper–Pearson).
@pytest.mark.parametrize(
    ("successes", "n", "wilson", "exact"),
    [
        (81, 263, (0.2553, 0.3662), (0.2527, 0.3676)),
        (15, 148, (0.0624, 0.1605), (0.0578, 0.1617)),
        (0, 20, (0.0000, 0.1611), (0.0000, 0.1684)),
        (1, 29, (0.0061, 0.1718), (0.0009, 0.1776)),
    ],
)
def test_intervals_of_one_rate_equal_the_published_ones(
    successes: int, n: int, wilson: tuple[float, float], exact: tuple[float, float]
) -> None:
    score, binomial = stats.wilson(successes, n), stats.clopper_pearson(successes, n)
    assert (score.low, score.high) == pytest.approx(wilson, abs=6e-5)
    assert (binomial.low, binomial.high) == pytest.approx(exact, abs=6e-5)


@given(st.integers(1, 80).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_intervals_of_one_rate_contain_it_and_mirror_for_failures(pair: tuple[int, int]) -> None:
    successes, n = pair
    for interval in (stats.wilson, stats.clopper_pearson):
        here, mirrored = interval(successes, n), interval(n - successes, n)
        assert 0 <= here.low <= here.estimate <= here.high <= 1
        assert (here.low, here.high) == pytest.approx((1 - mirrored.high, 1 - mirrored.low), abs=1e-12)


@pytest.mark.parametrize("n", [1, 7, 50])
def test_no_success_begins_at_zero_and_all_successes_end_at_one(n: int) -> None:
    for interval in (stats.wilson, stats.clopper_pearson):
        assert interval(0, n).low == 0.0
        assert 0.0 < interval(0, n).high < 1.0
        assert interval(n, n).high == 1.0
        assert 0.0 < interval(n, n).low < 1.0


@pytest.mark.parametrize("n", [5, 20, 50])
def test_the_exact_interval_covers_at_every_rate_and_wilson_on_average(n: int) -> None:
    rates = np.linspace(0.01, 0.99, 99)
    probability = scipy_stats.binom.pmf(np.arange(n + 1)[:, None], n, rates)

    def coverage(interval: object) -> np.ndarray:
        bounds = np.array([[i.low, i.high] for i in (interval(k, n) for k in range(n + 1))])  # type: ignore[operator]
        inside = (bounds[:, :1] <= rates) & (rates <= bounds[:, 1:])
        return (probability * inside).sum(axis=0)

    assert coverage(stats.clopper_pearson).min() >= 0.95
    assert coverage(stats.wilson).mean() == pytest.approx(0.95, abs=0.01)
    assert coverage(stats.wilson).min() > 0.83


@pytest.mark.parametrize("function", [stats.wilson, stats.clopper_pearson])
def test_a_rate_of_no_episodes_is_refused(function: object) -> None:
    with pytest.raises(ValueError, match="at least one episode; received n=0"):
        function(0, 0)  # type: ignore[operator]
    with pytest.raises(ValueError, match="received 3 of 2"):
        function(3, 2)  # type: ignore[operator]
    with pytest.raises(ValueError, match="between 0 and 1"):
        function(1, 2, confidence=95)  # type: ignore[operator]


def test_mcnemar_equals_the_published_p_values() -> None:
    # Airway hyper-responsiveness: 1 and 7 discordant; Fagerland et al., BMC Med Res Methodol 13:91 (2013), table 5.
    result = stats.mcnemar(1, 7)
    assert result.p == pytest.approx(0.0703, abs=5e-5)
    assert result.mid_p == pytest.approx(0.0391, abs=5e-5)


@given(counts, counts)
def test_mcnemar_is_the_two_sided_binomial_test_and_symmetric(b: int, c: int) -> None:
    result = stats.mcnemar(b, c)
    assert result == stats.mcnemar(c, b)
    assert 0.0 < result.mid_p <= result.p <= 1.0  # type: ignore[operator]
    if b + c:
        assert result.p == pytest.approx(scipy_stats.binomtest(b, b + c).pvalue)


def test_mcnemar_without_discordant_pairs_says_nothing() -> None:
    assert (stats.mcnemar(0, 0).p, stats.mcnemar(0, 0).mid_p) == (1.0, 1.0)
    assert stats.mcnemar(1, 1).mid_p == pytest.approx(0.75)


@pytest.mark.parametrize("discordant", [6, 15, 40])
def test_mcnemar_keeps_its_level(discordant: int) -> None:
    under_null = scipy_stats.binom.pmf(np.arange(discordant + 1), discordant, 0.5)
    p = np.array([stats.mcnemar(b, discordant - b).p for b in range(discordant + 1)])
    for level in (0.01, 0.05, 0.2):
        assert under_null[p <= level].sum() <= level


def test_the_paired_interval_equals_the_published_one() -> None:
    # Bentur et al. 2009, as analysed by Fagerland et al., Stat Med 33:2850 (2014): -0.286 (-0.507 to -0.026).
    interval = stats.paired_difference(PairedCounts(1, 1, 7, 12))
    assert interval.estimate == pytest.approx(-6 / 21)
    assert (interval.low, interval.high) == pytest.approx((-0.507, -0.026), abs=5e-4)


@given(counts, counts, counts, counts)
def test_the_paired_interval_contains_its_estimate_and_turns_round_with_the_policies(
    a: int, b: int, c: int, d: int
) -> None:
    if a + b + c + d == 0:
        with pytest.raises(ValueError, match="at least one pair"):
            stats.paired_difference(PairedCounts(a, b, c, d))
        return
    here, there = stats.paired_difference(PairedCounts(a, b, c, d)), stats.paired_difference(PairedCounts(a, c, b, d))
    assert -1 <= here.low <= here.estimate <= here.high <= 1
    assert (here.low, here.high) == pytest.approx((-there.high, -there.low), abs=1e-9)


def test_pairs_are_counted_from_aligned_outcomes() -> None:
    first, second = [True, True, False, False, True], [True, False, True, False, True]
    assert PairedCounts.of(first, second) == PairedCounts(2, 1, 1, 1)
    with pytest.raises(ValueError, match="aligned"):
        PairedCounts.of(first, second[:4])


@pytest.mark.parametrize("cells", [(0.5, 0.2, 0.1, 0.2), (0.85, 0.08, 0.02, 0.05), (0.3, 0.05, 0.25, 0.4)])
def test_the_paired_interval_covers_the_true_difference(cells: tuple[float, ...]) -> None:
    draws = Key(7).stream("coverage").event("paired").multinomial(60, cells, size=1500)
    truth = cells[1] - cells[2]
    intervals = [stats.paired_difference(PairedCounts(*map(int, draw))) for draw in draws]
    covered = np.mean([interval.low <= truth <= interval.high for interval in intervals])
    assert 0.93 <= covered <= 0.99


def test_pairing_narrows_the_interval_when_outcomes_agree() -> None:
    paired = stats.paired_difference(PairedCounts(50, 10, 0, 40))
    unpaired = stats.unpaired_difference(60, 100, 50, 100)
    assert paired.estimate == pytest.approx(unpaired.estimate)
    assert paired.high - paired.low < 0.6 * (unpaired.high - unpaired.low)


def test_the_unpaired_interval_equals_the_published_one() -> None:
    # Newcombe, Stat Med 17:873 (1998), table II, example (a), method 10.
    interval = stats.unpaired_difference(56, 70, 48, 80)
    assert (interval.low, interval.high) == pytest.approx((0.0524, 0.3339), abs=6e-5)


def test_the_unpaired_interval_covers_the_true_difference() -> None:
    generator = Key(11).stream("coverage").event("unpaired")
    first, second = generator.binomial(40, 0.8, 1500), generator.binomial(50, 0.6, 1500)
    intervals = [stats.unpaired_difference(int(a), 40, int(b), 50) for a, b in zip(first, second, strict=True)]
    assert 0.93 <= np.mean([i.low <= 0.2 <= i.high for i in intervals]) <= 0.97


def test_barnard_sees_what_the_tables_say_and_finds_nothing_in_equal_extremes() -> None:
    # Mato and Andrés 1997, the vaccine example of scipy's documentation: one-sided 0.0341.
    assert stats.barnard(7, 15, 12, 15).p == pytest.approx(0.0681, abs=2e-3)
    assert stats.barnard(0, 9, 0, 4).p == 1.0
    assert stats.barnard(9, 9, 4, 4).p == 1.0
    assert stats.barnard(30, 30, 0, 30).p < 1e-10


def test_barnard_keeps_its_level_and_hands_large_tables_to_the_z_test(monkeypatch: pytest.MonkeyPatch) -> None:
    n, rate = 7, 0.3
    probability = scipy_stats.binom.pmf(np.arange(n + 1), n, rate)
    p = np.array([[stats.barnard(a, n, b, n).p for b in range(n + 1)] for a in range(n + 1)])
    assert (np.outer(probability, probability) * (p <= 0.05)).sum() <= 0.05 + 1e-9
    exact = stats.barnard(127, 200, 108, 200)
    monkeypatch.setattr(stats, "_BARNARD_LIMIT", 39_999)
    large = stats.barnard(127, 200, 108, 200)
    assert (large.method, exact.method) == ("pooled z", "Barnard exact")
    assert large.p == pytest.approx(exact.p, rel=0.1)


def test_holm_equals_a_worked_example_and_keeps_the_order_given() -> None:
    assert stats.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert stats.holm([]) == []
    assert stats.holm([0.2, 0.9]) == pytest.approx([0.4, 0.9])


def test_the_mean_interval_is_students() -> None:
    interval = stats.mean_interval([1.0, 2.0, 3.0, 4.0])
    low, high = scipy_stats.t.interval(0.95, 3, loc=2.5, scale=scipy_stats.sem([1, 2, 3, 4]))
    assert (interval.estimate, interval.low, interval.high) == pytest.approx((2.5, low, high))
    assert stats.mean_interval([3.0]).high == math.inf
    with pytest.raises(ValueError, match="at least one value"):
        stats.mean_interval([])


def test_a_bootstrap_depends_on_its_key_alone_and_covers_a_skewed_mean() -> None:
    generator = Key(3).stream("coverage").event("bootstrap")
    samples = generator.exponential(2.0, size=(200, 60))
    intervals = [stats.bootstrap_mean(sample, Key(index), resamples=400) for index, sample in enumerate(samples)]
    assert 0.88 <= np.mean([i.low <= 2.0 <= i.high for i in intervals]) <= 0.98
    assert stats.bootstrap_mean(samples[0], Key(5)) == stats.bootstrap_mean(samples[0], Key(5))
    assert stats.bootstrap_mean(samples[0], Key(5)) != stats.bootstrap_mean(samples[0], Key(6))


def test_a_cluster_bootstrap_is_wider_than_a_binomial_interval_when_tasks_differ() -> None:
    tasks = [[1.0] * 50] * 6 + [[0.0] * 50] * 6
    clustered, pooled = stats.cluster_bootstrap(tasks, Key(0)), stats.wilson(300, 600)
    assert clustered.estimate == pooled.estimate == 0.5
    assert clustered.high - clustered.low > 3 * (pooled.high - pooled.low)
    with pytest.raises(ValueError, match="two clusters; received 1"):
        stats.cluster_bootstrap(tasks[:1], Key(0))


def test_a_cluster_bootstrap_covers_the_mean_over_tasks() -> None:
    generator = Key(4).stream("coverage").event("clusters")
    covered = []
    for index in range(200):
        rates = generator.beta(2, 1, size=15)
        outcomes = generator.random((15, 20)) < rates[:, None]
        interval = stats.cluster_bootstrap(list(outcomes), Key(index), resamples=1000)
        covered.append(interval.low <= 2 / 3 <= interval.high)
    assert 0.87 <= np.mean(covered) <= 0.99


def test_sample_sizes_equal_those_of_the_power_tables() -> None:
    # R, help(power.prop.test): p1 = .50, p2 = .75, power = .90 gives n = 76.7; and n = 50 gives power = 0.740.
    assert stats.episodes_needed(0.50, 0.75, power=0.90) == 77
    assert stats.minimum_detectable_effect(50, 0.5, power=0.740) == pytest.approx(0.25, abs=1e-3)


def test_the_planned_number_of_pairs_gives_the_power_asked_for() -> None:
    difference, discordance = 0.15, 0.25
    n = stats.pairs_needed(difference, discordance, power=0.8)
    only_first, only_second = (discordance + difference) / 2, (discordance - difference) / 2
    draws = Key(2).stream("power").event().multinomial(n, (1 - discordance, only_first, only_second), size=4000)
    found = np.mean([stats.mcnemar(int(b), int(c)).mid_p <= 0.05 for _, b, c in draws])  # type: ignore[operator]
    assert found == pytest.approx(0.8, abs=0.05)
    assert stats.minimum_detectable_paired_effect(n, discordance) == pytest.approx(difference, abs=0.003)


def test_what_cannot_be_detected_is_said_to_be_none() -> None:
    assert stats.minimum_detectable_effect(3, 0.5) is None
    assert stats.minimum_detectable_effect(50, 1.0) is None
    assert stats.minimum_detectable_paired_effect(10, 0.0) is None
    with pytest.raises(ValueError, match="difference of zero"):
        stats.episodes_needed(0.5, 0.5)


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=9))
def test_the_sign_flip_test_is_the_share_of_sign_patterns_at_least_as_extreme(values: list[float]) -> None:
    x = np.round(np.array(values), 3)
    signs = np.array(np.meshgrid(*[[1, -1]] * len(x))).reshape(len(x), -1)
    sums = np.abs(x @ signs)
    expected = (sums >= abs(x.sum()) - 1e-9).mean()
    assert stats.sign_flip(x, Key(0))[1].p == pytest.approx(min(1.0, expected))


@given(st.lists(st.integers(-3, 4), min_size=1, max_size=16))
def test_the_sign_flip_interval_leaves_out_zero_exactly_where_the_test_rejects_it(values: list[int]) -> None:
    interval, test = stats.sign_flip(values, Key(0))
    assert (interval.low > 1e-9 or interval.high < -1e-9) == (test.p <= 0.05)
    assert interval.low <= interval.estimate + 1e-9
    assert interval.estimate - 1e-9 <= interval.high


def test_the_sign_flip_interval_covers_as_often_as_it_says() -> None:
    generator = np.random.default_rng(0)
    for n, draws in ((8, 2000), (20, 300)):
        samples = 3.0 + generator.standard_t(3, (draws, n))
        found = [stats.sign_flip(sample, Key(0))[0] for sample in samples]
        covered = np.mean([interval.low <= 3.0 <= interval.high for interval in found])
        assert covered == pytest.approx(0.95, abs=4 * math.sqrt(0.05 * 0.95 / draws))


def test_too_few_pairs_have_no_finite_interval_and_no_small_p() -> None:
    interval, test = stats.sign_flip([1.0, 1.0], Key(0))
    assert (interval.low, interval.high, test.p) == (-math.inf, math.inf, 0.5)
    assert math.isfinite(stats.sign_flip([1.0] * 6, Key(0))[0].low)


def test_welch_is_the_unequal_variance_test_and_says_little_where_nothing_spreads() -> None:
    generator = np.random.default_rng(1)
    a, b = generator.normal(0, 1, 9), generator.normal(1, 3, 14)
    interval, test = stats.welch(a, b)
    reference = scipy_stats.ttest_ind(a, b, equal_var=False)
    bounds = reference.confidence_interval()
    assert test.p == pytest.approx(reference.pvalue)
    assert (interval.low, interval.high) == pytest.approx((bounds.low, bounds.high))
    assert stats.welch([1.0, 1.0], [0.0, 0.0])[1].p == pytest.approx(1 / 3)
    assert stats.welch([1.0], [1.0, 2.0])[1].p == 1.0
