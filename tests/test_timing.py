"""Times of inference: counted per prediction beside the episodes, and weighed against the control time."""

import io
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from policies.chunked import Chunked, ChunkModel, Prediction
from simeval.episode import Ending
from simeval.errors import SimevalError
from simeval.latency import Counts, add, counts_from_json, counts_to_json, quantile, total
from simeval.noise import StepKey
from simeval.outcomes import read_outcomes
from simeval.policy import Policy
from simeval.protocols import together
from simeval.rollout import run
from simeval.score import score
from simeval.tables import print_table
from simeval.testing import ToyExpert, ToySimulator
from simeval.testing.runs import made_episode, made_rollout, write_made_run
from simeval.timing import binding, timings, worth_reading
from simeval.types import Observation, Rollout


class Chunks(ChunkModel):
    """Predicts nothing but zeros."""

    horizon, action_dim, observation_keys, fingerprint = 5, 2, ("state",), "zeros"

    def predict(self, observation: Observation, instruction: Sequence[str], keys: Sequence[StepKey]) -> Prediction:
        return Prediction(np.zeros((len(keys), 5, 2), np.float32))


def counted(*seconds: float) -> Counts:
    counts: Counts = {}
    for value in seconds:
        add(counts, value)
    return counts


def test_quantiles_are_those_of_the_durations_to_within_two_percent() -> None:
    durations = np.exp(np.random.default_rng(0).normal(-4, 1.5, 2001))
    counts = total([counted(*durations[:700]), counted(*durations[700:])])
    for share in (0.5, 0.95, 0.99, 1.0):
        exact = np.quantile(durations, share, method="inverted_cdf")
        assert quantile(counts, share) == pytest.approx(exact, rel=0.022)
    assert counts_from_json(counts_to_json(counts)) == counts


def timed(policy: Policy, horizon: int, slots: int) -> list[int]:
    """Predictions timed in each of four episodes of so many steps."""
    world = ToySimulator(slots)
    asked = [Rollout(world.start("reach-left", i), seed=i, horizon=horizon, stop_on_success=False) for i in range(4)]
    return [sum(episode.ending.inference.values()) for episode in run(together(asked), world, policy)]


def test_each_new_chunk_is_timed_and_nothing_else_but_the_first_call() -> None:
    assert timed(Chunked(Chunks(), execute=3, batch_size=2), horizon=9, slots=1) == [2, 3, 3, 3]
    assert timed(Chunked(Chunks(), execute=3, batch_size=2), horizon=9, slots=4) == [2, 2, 2, 2]
    assert timed(ToyExpert(), horizon=7, slots=4) == [6, 6, 6, 6]


def test_times_are_recorded_and_tell_no_two_episodes_apart() -> None:
    ending = made_episode(made_rollout("p", "pick", 0), True).ending
    slow = replace(ending, inference=counted(0.5, 0.5, 0.01))
    assert slow == ending
    back = Ending.from_json(slow.to_json())
    assert back.inference == slow.inference
    old = {key: value for key, value in ending.to_json().items() if key != "inference"}
    assert Ending.from_json(old).inference == {}


def recorded(tmp_path, conventions):
    """A run of a fast and a slow policy in one World, of 20 Hz; the fast one executes four actions of each chunk."""
    episodes = []
    for policy, seconds in (("fast", [0.02] * 98 + [0.5] * 2), ("slow", [0.08] * 100)):
        episode = made_episode(made_rollout(policy, "pick", 0), True)
        episode.ending = replace(episode.ending, inference=counted(*seconds))
        episodes.append(episode)
    return write_made_run(tmp_path / "run", episodes, info={"conventions": conventions})


SAID = {
    "worlds": {"world": {"control_dt": 0.05}},
    "policies": {"world": {"fast": {"executed": 4, "chunk": 8}, "slow": {}}},
}


def test_the_longer_of_inference_and_control_binds(tmp_path) -> None:
    fast, slow = timings(read_outcomes(recorded(tmp_path, SAID)), SAID)
    assert (fast["predictions"], fast["executed"], fast["control_ms"]) == (100, 4, pytest.approx(200))
    assert fast["binds"] == {"p50": "control", "p95": "control", "p99": "inference"}
    assert fast["cycle_ms"]["p50"] == pytest.approx(200)
    assert fast["cycle_ms"]["p99"] == pytest.approx(500, rel=0.022)
    assert (slow["executed"], slow["control_ms"], binding(slow)) == (1, pytest.approx(50), "inference binds")
    assert slow["cycle_ms"]["p95"] == pytest.approx(80, rel=0.022)
    assert binding(fast) == "control binds; from p99 on, inference"


def test_policies_that_need_little_of_their_control_time_are_told_in_a_line(tmp_path) -> None:
    row = timings(read_outcomes(recorded(tmp_path, SAID)), SAID)[0]
    quick = [
        {**row, "policy": name, "inference_ms": {**row["inference_ms"], "p99": p99}}
        for name, p99 in (("expert", 1.0), ("noisy", 19.0))
    ]
    shown, told = worth_reading([*quick, row])
    assert [other["policy"] for other in shown] == ["fast"]
    assert told.startswith("expert, noisy predict within 19 ms (p99)")
    assert worth_reading([row]) == ([row], "")
    assert worth_reading([{**quick[0], "control_ms": None}])[1] == ""


def test_scores_and_table_show_the_times_and_without_a_control_period_no_roofline(tmp_path) -> None:
    scores = score(recorded(tmp_path, {}))
    assert [row["policy"] for row in scores["timing"]] == ["fast", "slow"]
    assert all(row["cycle_ms"] is None for row in scores["timing"])
    shown = Console(file=io.StringIO(), width=120)
    print_table(scores, shown)
    text = shown.file.getvalue()
    assert "Inference [ms]" in text
    assert "control period not recorded" in text


def test_a_run_without_times_has_no_table_of_them(tmp_path) -> None:
    scores = score(write_made_run(tmp_path / "run", [made_episode(made_rollout("p", "pick", 0), True)]))
    assert scores["timing"] == []
    shown = Console(file=io.StringIO(), width=120)
    print_table(scores, shown)
    assert "Inference" not in shown.file.getvalue()


@pytest.mark.parametrize(
    "said",
    [5, {"worlds": []}, {"policies": {"world": {"fast": 3}}}, {"worlds": {"world": {"control_dt": "fast"}}}],
)
def test_conventions_that_were_altered_are_told_in_one_line(tmp_path, said) -> None:
    with pytest.raises(SimevalError, match=r"the file was altered|control_dt is a number; received 'fast'"):
        score(recorded(tmp_path, said))
