"""Keyed noise: a draw is a function of (seed, stream, step, event) and of nothing else."""

import subprocess
import sys

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from simeval.noise import NOISE_LAYOUT, Key, StepKey, standard_normal, uniform

GOLDEN = [0.2933895792555514, 0.9249418374140452, 0.31231531185371564]


def draw(seed: int = 3, stream: str = "world", step: int = 5, *event: int | str, count: int = 4) -> np.ndarray:
    return Key(seed).stream(stream).at(step, *event).random(count)


def test_a_draw_does_not_depend_on_what_was_drawn_before():
    first = draw()
    Key(3).stream("world").at(4).random(1000)
    Key(3).stream("world").at(5, "other").standard_normal(7)
    np.testing.assert_array_equal(draw(), first)


def test_a_draw_is_the_same_in_another_process():
    program = (
        "from simeval.noise import Key; "
        "print(Key(3).stream('world').at(5, 'cube', 2).random(4).tobytes().hex(), Key(3).integer('a', 1))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    raw, number = done.stdout.split()
    assert bytes.fromhex(raw) == draw(3, "world", 5, "cube", 2).tobytes()
    assert int(number) == Key(3).integer("a", 1)


def test_the_layout_gives_the_draws_that_it_always_gave():
    assert NOISE_LAYOUT == "philox4x64/blake2b-128/1"
    np.testing.assert_allclose(draw(1, "world", 2, "cube", count=3), GOLDEN, rtol=1e-15)


@pytest.mark.parametrize("fill", [standard_normal, uniform])
def test_rows_do_not_depend_on_their_position_or_their_neighbours(fill):
    keys = [Key(seed).stream("world").key(step) for seed, step in ((1, 0), (2, 9), (3, 4), (1, 1))]
    whole = fill(keys, (3, 2), "gust")
    for order in ([2, 0], [3, 2, 1, 0], [1]):
        np.testing.assert_array_equal(fill([keys[i] for i in order], (3, 2), "gust"), whole[order])


@pytest.mark.parametrize(
    "other",
    [
        lambda: draw(seed=4),
        lambda: draw(stream="policy"),
        lambda: draw(step=6),
        lambda: draw(3, "world", 5, "cube"),
        lambda: Key(3).stream("world").event().random(4),
        lambda: draw(seed=-3),
        lambda: draw(seed=3 + 2**64),
    ],
)
def test_seed_stream_step_and_event_each_change_the_draw(other):
    assert np.intersect1d(draw(), other()).size == 0


def test_events_are_told_apart_by_type_and_by_where_their_parts_end():
    stream = Key(0).stream("world")
    events = [("1",), (1,), ("a", "b"), ("ab",), ("a", "", "b"), (1, 2), (12,), ("1:a",), ("", "1:a"), ()]
    draws = {stream.at(0, *event).integers(2**63) for event in events}
    assert len(draws) == len(events)


@pytest.mark.parametrize("event", [(1.0,), (True,), (None,), (b"x",)])
def test_an_event_is_made_of_ints_and_strings(event):
    with pytest.raises(TypeError, match="ints and strings"):
        Key(0).stream("world").at(0, *event)


def test_a_numpy_integer_names_the_same_event_as_an_int():
    assert Key(0).integer("a", np.int64(7)) == Key(0).integer("a", 7)


def test_a_negative_step_is_refused():
    with pytest.raises(ValueError, match="received -1"):
        Key(0).stream("world").at(-1)


def test_a_step_key_gives_the_draws_of_its_stream_at_its_step():
    key = Key(3).stream("world").key(5)
    assert key == StepKey(Key(3).stream("world"), 5)
    np.testing.assert_array_equal(key.generator("cube").random(4), draw(3, "world", 5, "cube"))
    np.testing.assert_array_equal(key.event("cube").random(4), Key(3).stream("world").event("cube").random(4))


def test_steps_never_overlap_however_much_is_drawn():
    """The counter's last word is the step: step t would reach t + 1 only after 2**194 draws."""
    stream = Key(11).stream("world")
    blocks = [stream.at(step).integers(0, 2**64, size=4096, dtype=np.uint64) for step in range(32)]
    assert np.unique(np.concatenate(blocks)).size == 32 * 4096
    for step in (0, 1, 2**31, 2**63):
        state = stream.at(step).bit_generator.state["state"]
        np.testing.assert_array_equal(state["counter"], np.array([0, 0, 0, step], dtype=np.uint64))


def test_draws_across_steps_are_uniform_and_normal():
    keys = [Key(5).stream("world").key(step) for step in range(8000)]
    assert scipy.stats.kstest(uniform(keys, ()), "uniform").pvalue > 0.01
    assert scipy.stats.kstest(standard_normal(keys, ()), "norm").pvalue > 0.01


def test_draws_across_seeds_are_uniform_and_normal():
    keys = [Key(seed).stream("world").key(0) for seed in range(8000)]
    assert scipy.stats.kstest(uniform(keys, ()), "uniform").pvalue > 0.01
    assert scipy.stats.kstest(standard_normal(keys, ()), "norm").pvalue > 0.01


def test_numbers_for_seeding_are_spread_evenly():
    numbers = np.array([Key(seed).integer("start", index) for seed in range(20) for index in range(200)])
    assert np.unique(numbers).size == numbers.size
    assert numbers.min() >= 0
    assert scipy.stats.kstest(numbers / 2.0**63, "uniform").pvalue > 0.01


@pytest.mark.parametrize(
    "pair",
    [
        (lambda t: Key(0).stream("world").key(t), lambda t: Key(0).stream("policy").key(t)),
        (lambda t: Key(0).stream("world").key(t), lambda t: Key(1).stream("world").key(t)),
        (lambda t: Key(0).stream("world").key(t), lambda t: Key(0).stream("world").key(t + 1)),
        (lambda t: Key(t).stream("world").key(0), lambda t: Key(t + 1).stream("world").key(0)),
    ],
)
def test_neighbouring_streams_seeds_and_steps_are_uncorrelated(pair):
    left, right = (standard_normal([key(t) for t in range(4000)], ()) for key in pair)
    assert scipy.stats.pearsonr(left, right).pvalue > 0.01
    assert scipy.stats.pearsonr(left**2, right**2).pvalue > 0.01


@given(
    st.integers(), st.text(max_size=8), st.integers(0, 2**63), st.lists(st.integers() | st.text(max_size=4), max_size=3)
)
@settings(max_examples=30, deadline=None)
def test_any_address_gives_a_reproducible_draw(seed, stream, step, event):
    one = Key(seed).stream(stream).at(step, *event).random(2)
    np.testing.assert_array_equal(one, Key(seed).stream(stream).at(step, *event).random(2))
    assert ((one >= 0) & (one < 1)).all()


def pushes(key: Key, order: list[str], keyed: bool) -> dict[str, list[float]]:
    """Each object that is pushed gets a kick, from its own event or from one sequential stream."""
    stream, sequence = key.stream("world"), key.stream("world").event()
    kicks: dict[str, list[float]] = {}
    for name in order:
        count = len(kicks.setdefault(name, []))
        generator = stream.event("push", name, count) if keyed else sequence
        kicks[name].append(generator.standard_normal())
    return kicks


def test_event_keyed_noise_stays_aligned_after_branches_diverge_and_a_sequence_does_not():
    factual, twin = ["cube", "ball", "cube", "ball"], ["cube", "drawer", "ball", "cube", "ball"]
    one, other = pushes(Key(8), factual, keyed=True), pushes(Key(8), twin, keyed=True)
    assert {name: other[name] for name in one} == one
    one, other = pushes(Key(8), factual, keyed=False), pushes(Key(8), twin, keyed=False)
    assert other["cube"][0] == one["cube"][0]
    assert other["ball"] != one["ball"]
    assert other["cube"][1] != one["cube"][1]
