"""What counts as success in one episode."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simeval.metrics import action_jerk, action_rate, hold_step, summarise


def test_summary_of_an_episode_that_succeeds_at_its_last_step() -> None:
    summary = summarise(np.array([0.0, 0.5, 1.0]), np.array([False, False, True]))
    assert (summary.success, summary.success_step, summary.length, summary.total_reward) == (True, 2, 3, 1.5)


def test_success_that_does_not_hold_is_transient_and_does_not_count() -> None:
    success = np.array([False, True, True, False, True, True, False])
    assert not summarise(np.zeros(7), success, success_hold=3).success
    assert summarise(np.zeros(7), success, success_hold=2).success_step == 2


def test_separate_successes_do_not_add_up_to_a_hold() -> None:
    assert not summarise(np.zeros(5), np.array([True, False, True, False, True]), success_hold=2).success


def test_an_episode_without_steps_has_no_success() -> None:
    summary = summarise(np.zeros(0), np.zeros(0, dtype=bool))
    assert (summary.success, summary.success_step, summary.length, summary.total_reward) == (False, None, 0, 0.0)


def test_a_hold_of_no_steps_defines_no_success_and_of_fewer_is_refused() -> None:
    summary = summarise(np.ones(2), np.ones(2, dtype=bool), success_hold=0, held=3)
    assert (summary.success, summary.success_step, summary.length, summary.total_reward) == (False, None, 2, 2.0)
    for nonsense in (lambda: summarise(np.ones(2), np.ones(2, dtype=bool), -1), lambda: hold_step(np.ones(2), 0)):
        with pytest.raises(ValueError, match="at least one step"):
            nonsense()


def test_arrays_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(3,\) and \(2,\)"):
        summarise(np.zeros(3), np.zeros(2, dtype=bool))


@given(st.lists(st.booleans(), max_size=40), st.integers(1, 6))
def test_the_hold_step_is_the_first_end_of_a_long_enough_run(flags: list[bool], hold: int) -> None:
    ends = [t for t in range(hold - 1, len(flags)) if all(flags[t - hold + 1 : t + 1])]
    assert hold_step(np.array(flags, dtype=bool), hold) == (ends[0] if ends else None)


def test_smoothness_of_a_ramp_is_its_slope_and_it_has_no_jerk() -> None:
    ramp = np.arange(6.0)[:, None] * np.array([3.0, 4.0]) * 0.1
    assert action_rate(ramp, control_dt=0.1) == pytest.approx(5.0)
    assert action_jerk(ramp, control_dt=0.1) == pytest.approx(0.0, abs=1e-9)
    assert np.isnan(action_rate(ramp[:1], 0.1))
