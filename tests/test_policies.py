"""Simple policies and wrappers: they conform, they do what they say, and they refuse what does not fit."""

from collections.abc import Sequence
from functools import partial
from importlib.resources import files
from typing import Any

import gymnasium
import numpy as np
import pytest
import yaml

from policies.basic import Constant, Uniform
from policies.chunked import Chunked, ChunkModel, Ensembled, Prediction
from policies.clipped import Clipped
from policies.noisy import ActionNoise
from policies.replay import Replay
from simeval.errors import ConfigError, TraceError
from simeval.noise import Key, StepKey
from simeval.policy import Memory, Policy, PolicyStep
from simeval.protocols import together
from simeval.reader import Run
from simeval.rollout import run
from simeval.testing import ToyExpert, ToyGaussian, ToySimulator, ToySmoother, assert_conforms, check_policy
from simeval.testing.runs import made_episode, made_rollout, write_made_run
from simeval.types import Observation, Rollout

SPEC = ToySimulator(1).spec


class ToyChunks(ChunkModel):
    """A chunk model that moves from the disc to the puck in equal parts; its low bits depend on the batch size."""

    horizon = 6
    action_dim = 2
    observation_keys = ("state",)
    fingerprint = "toy chunks"

    def __init__(self) -> None:
        self.batches: list[int] = []

    def predict(self, observation: Observation, instruction: Sequence[str], keys: Sequence[StepKey]) -> Prediction:
        state = observation["state"]
        self.batches.append(len(state))
        towards = np.clip(state[:, 4:6] - state[:, 0:2], -0.4, 0.4) * (1 + 1e-6 * len(state))
        noise = np.stack([key.generator("chunk").standard_normal((self.horizon, 2)) for key in keys])
        ramp = np.linspace(1.0, 2.0, self.horizon)[None, :, None]
        return Prediction(np.clip(towards[:, None] * ramp + 0.01 * noise, -1, 1).astype(np.float32))


def keys(step: int, count: int, seed: int = 0) -> list[StepKey]:
    return [Key(seed + row).stream("policy").key(step) for row in range(count)]


def recordings(rows: int = 4, steps: int = 40) -> dict[int, np.ndarray]:
    generator = np.random.default_rng(0)
    seeds = [Key(0).integer("check-policy", row) >> 32 for row in range(rows)]
    return {seed: generator.uniform(-1, 1, (steps, 2)).astype(np.float32) for seed in seeds}


@pytest.mark.parametrize(
    "factory",
    [
        Uniform,
        partial(Constant, [0.5, -0.25]),
        partial(ActionNoise, ToyExpert(), 0.3),
        partial(ActionNoise, ToySmoother(), [0.1, 0.4]),
        lambda: Replay(recordings()),
        lambda: Chunked(ToyChunks(), execute=4, batch_size=3),
        lambda: Ensembled(ToyChunks(), batch_size=2),
        lambda: ActionNoise(Chunked(ToyChunks(), execute=2, batch_size=8), 0.1),
        lambda: Clipped(ActionNoise(Chunked(WildChunks(), execute=2, batch_size=8), 0.1)),
    ],
)
def test_every_policy_conforms(factory):
    assert_conforms(check_policy(factory, ToySimulator))


def test_uniform_covers_the_space_evenly():
    low, high = np.array([-1.0, 2.0], dtype=np.float32), np.array([3.0, 2.5], dtype=np.float32)
    policy = Uniform(gymnasium.spaces.Box(low, high))
    step = policy.act({}, [""] * 4000, {}, keys(0, 4000))
    unit = (step.action - low) / (high - low)
    assert np.abs(unit.mean(axis=0) - 0.5).max() < 0.02
    assert np.abs(unit.var(axis=0) - 1 / 12).max() < 0.005
    np.testing.assert_allclose(step.log_prob, -np.log(2.0))


def test_uniform_refuses_an_unbounded_space():
    space = gymnasium.spaces.Box(-np.inf, np.inf, (2,))
    spec = type(SPEC)(SPEC.name, SPEC.observation_space, space, SPEC.control_dt, SPEC.tasks)
    with pytest.raises(ConfigError, match="unbounded"):
        Uniform().bind(spec)


@pytest.mark.parametrize(("value", "message"), [([0.1, 0.2, 0.3], "3 numbers does not fit 2"), (1.5, "outside")])
def test_a_constant_that_does_not_fit_is_refused(value, message):
    with pytest.raises(ConfigError, match=message):
        Constant(value).bind(SPEC)


def test_unbound_policies_say_so():
    for policy in (Uniform(), Constant(), ActionNoise(ToyExpert(), 0.1), Clipped(ToyExpert())):
        with pytest.raises(ConfigError, match="bind"):
            policy.act({"state": np.zeros((1, 12))}, ["reach"], {}, keys(0, 1))


def test_action_noise_has_its_standard_deviation_about_the_inner_action():
    policy = ActionNoise(Constant([0.1, -0.1]), [0.05, 0.2]).bind(SPEC)
    action = policy.act({}, [""] * 4000, {}, keys(3, 4000)).action
    np.testing.assert_allclose(action.mean(axis=0), [0.1, -0.1], atol=0.015)
    np.testing.assert_allclose(action.std(axis=0), [0.05, 0.2], rtol=0.05)


def test_action_noise_scales_with_the_range_and_stays_inside():
    space = gymnasium.spaces.Box(np.float32([-10, 0]), np.float32([10, 0.01]))
    spec = type(SPEC)(SPEC.name, SPEC.observation_space, space, SPEC.control_dt, SPEC.tasks)
    action = ActionNoise(Constant([0.0, 0.005]), 0.3).bind(spec).act({}, [""] * 2000, {}, keys(0, 2000)).action
    assert 2.5 < action[:, 0].std() < 3.5
    assert all(space.contains(row) for row in action)


def test_no_action_noise_is_the_inner_policy():
    state = {
        "state": ToySimulator(2).reset([0], [ToySimulator(1).start("push-left", 1)], keys(0, 1)).observation["state"]
    }
    plain = ToyExpert().act(state, ["push left"], {}, keys(0, 1)).action
    noisy = ActionNoise(ToyExpert(), 0.0).bind(SPEC).act(state, ["push left"], {}, keys(0, 1)).action
    np.testing.assert_array_equal(plain, noisy)


@pytest.mark.parametrize("wrap", [lambda policy: policy, Clipped], ids=["bare", "through another wrapper"])
def test_layers_of_action_noise_are_independent(wrap):
    still, sigma = Constant([0.0, 0.0]), 0.1
    inner = ActionNoise(still, sigma)
    first = inner.bind(SPEC).act({}, [""] * 4000, {}, keys(0, 4000)).action
    both = ActionNoise(wrap(inner), sigma).bind(SPEC).act({}, [""] * 4000, {}, keys(0, 4000)).action
    second = both - first
    np.testing.assert_allclose(both.std(axis=0), np.sqrt(2) * sigma, rtol=0.05)
    assert abs(np.corrcoef(first[:, 0], second[:, 0])[0, 1]) < 0.06
    three = ActionNoise(ActionNoise(wrap(inner), sigma), sigma).bind(SPEC).act({}, [""] * 4000, {}, keys(0, 4000))
    np.testing.assert_allclose(three.action.std(axis=0), np.sqrt(3) * sigma, rtol=0.05)


def test_clipped_actions_lie_in_the_space_and_say_which_were_altered():
    step = (
        Clipped(Fixed([[0.5, -0.5], [3.0, -0.5], [np.nan, -2.0], [np.inf, 0.0]])).bind(SPEC).act({}, [""] * 4, {}, [])
    )
    np.testing.assert_array_equal(step.action, np.float32([[0.5, -0.5], [1, -0.5], [np.nan, -1], [np.inf, 0.0]]))
    assert step.extras["clipped"].tolist() == [False, True, True, False]
    assert step.action.dtype == SPEC.action_space.dtype


def test_clipping_leaves_what_is_inside_as_it_was():
    observation = {"state": np.tile(ToySimulator(1).observation_space.sample()["state"], (3, 1))}
    for inner in (ToyExpert(), Chunked(ToyChunks(), execute=2, batch_size=2)):
        memory = inner.initial_memory(3)
        plain = inner.act(observation, ["push left"] * 3, memory, keys(0, 3))
        clipped = Clipped(inner).bind(SPEC).act(observation, ["push left"] * 3, memory, keys(0, 3))
        np.testing.assert_array_equal(plain.action, clipped.action)
        assert not clipped.extras["clipped"].any()


def test_clipping_keeps_the_density_of_what_was_drawn_and_says_where_that_is_not_the_action():
    class Wide(ToyGaussian):
        """A Gaussian that is not held within the action space."""

        def act(self, observation, instruction, memory, keys):
            draw = 1.5 * np.stack([key.generator("draw").standard_normal(2) for key in keys])
            log_prob = (-((draw / 1.5) ** 2) / 2 - np.log(1.5 * np.sqrt(2 * np.pi))).sum(axis=1)
            entropy = np.full(len(keys), 2 * np.log(1.5 * np.sqrt(2 * np.pi * np.e)))
            return PolicyStep(draw, {}, log_prob=log_prob, entropy=entropy, extras={"draw": draw})

    given = ({"state": np.zeros((40, 12))}, ["reach"] * 40, {}, keys(0, 40))
    inner, step = Wide().act(*given), Clipped(Wide()).bind(SPEC).act(*given)
    np.testing.assert_array_equal(step.log_prob, inner.log_prob)
    np.testing.assert_array_equal(step.entropy, inner.entropy)
    clipped = step.extras["clipped"]
    assert 0 < clipped.sum() < 40
    np.testing.assert_array_equal(clipped, (np.abs(inner.action) > 1).any(axis=1))
    density = (-((step.action / 1.5) ** 2) / 2 - np.log(1.5 * np.sqrt(2 * np.pi))).sum(axis=1)
    np.testing.assert_allclose(step.log_prob[~clipped], density[~clipped], rtol=1e-5)
    assert (step.log_prob[clipped] < density[clipped]).all()


def test_chunks_out_of_bounds_run_once_they_are_clipped():
    world = ToySimulator(1)
    rollout = Rollout(world.start("push-left", 0), seed=0, horizon=4, policy="p")
    chunked = Chunked(WildChunks(), execute=2, batch_size=1)
    (refused,) = run(together([rollout]), world, {"p": chunked})
    (clipped,) = run(together([rollout]), world, {"p": Clipped(chunked)})
    assert (refused.status, clipped.status) == ("error", "done")


class Fixed(Policy):
    """Gives the actions it was made with."""

    def __init__(self, action: Sequence[Sequence[float]]):
        self.action = np.array(action)

    def act(self, observation: Any, instruction: Sequence[str], memory: Memory, keys: Sequence[StepKey]) -> PolicyStep:
        return PolicyStep(self.action, {})


class WildChunks(ToyChunks):
    """Leaves the action space."""

    def predict(self, observation: Observation, instruction: Sequence[str], keys: Sequence[StepKey]) -> Prediction:
        return Prediction(5.0 + super().predict(observation, instruction, keys).chunk)


def test_action_noise_drops_the_density_of_the_inner_action():
    step = ActionNoise(ToyGaussian(), 0.1).bind(SPEC).act({"state": np.zeros((1, 12))}, ["reach"], {}, keys(0, 1))
    assert step.log_prob is None
    assert step.entropy is None


def test_a_negative_sigma_is_refused():
    with pytest.raises(ConfigError, match="received -0"):
        ActionNoise(ToyExpert(), -0.1)


def test_chunks_are_executed_in_order_and_asked_for_only_when_used_up():
    model = ToyChunks()
    policy = Chunked(model, execute=4, batch_size=2).bind(SPEC)
    state, memory, actions, chunks = {"state": np.ones((2, 12)) * [[0.1], [0.2]]}, policy.initial_memory(2), [], []
    for step in range(8):
        result = policy.act(state, ["", ""], memory, keys(step, 2))
        memory = result.memory
        actions.append(result.action)
        chunks.append(result.chunk)
        assert result.extras["replanned"].all() == (step % 4 == 0)
    assert model.batches == [2, 2]
    np.testing.assert_array_equal(np.stack(actions[:4], axis=1), chunks[0][:, :4])
    np.testing.assert_array_equal(np.stack(actions[4:], axis=1), chunks[4][:, :4])
    assert not np.array_equal(chunks[0], chunks[4])


def test_only_empty_queues_reach_the_model_always_in_full_batches():
    model = ToyChunks()
    policy = Chunked(model, execute=3, batch_size=4).bind(SPEC)
    memory = dict(policy.initial_memory(6))
    memory["cursor"] = np.array([3, 0, 3, 1, 3, 2])
    result = policy.act({"state": np.zeros((6, 12))}, [""] * 6, memory, keys(0, 6))
    assert model.batches == [4]
    np.testing.assert_array_equal(result.extras["replanned"], [True, False, True, False, True, False])
    np.testing.assert_array_equal(result.memory["cursor"], [1, 1, 1, 2, 1, 3])
    policy.act({"state": np.zeros((6, 12))}, [""] * 6, policy.initial_memory(6), keys(0, 6))
    assert model.batches == [4, 4, 4]


@pytest.mark.parametrize("execute", [0, 7])
def test_an_executed_length_outside_the_chunk_is_refused(execute):
    with pytest.raises(ConfigError, match="between 1 and the chunk's 6"):
        Chunked(ToyChunks(), execute=execute, batch_size=1)


def test_a_chunk_model_of_other_actions_is_refused():
    model = ToyChunks()
    model.action_dim = 7
    with pytest.raises(ConfigError, match="7 numbers"):
        Chunked(model, execute=1, batch_size=1).bind(SPEC)


class CountingChunks(ToyChunks):
    """Predicts, for every step ahead, the number of the prediction."""

    def predict(self, observation: Observation, instruction: Sequence[str], keys: Sequence[StepKey]) -> Prediction:
        return Prediction(np.full((len(keys), self.horizon, 2), float(keys[0].step), dtype=np.float32))


def test_temporal_ensembling_weights_old_predictions_most():
    decay = 0.5
    policy = Ensembled(CountingChunks(), batch_size=1, decay=decay).bind(SPEC)
    memory = policy.initial_memory(1)
    for step in range(12):
        result = policy.act({"state": np.zeros((1, 12))}, [""], memory, keys(step, 1))
        memory = result.memory
        predictions = np.arange(max(0, step - 5), step + 1)
        weights = np.exp(-decay * np.arange(len(predictions)))
        np.testing.assert_allclose(result.action, np.sum(weights * predictions) / weights.sum(), rtol=1e-6)


def test_replay_gives_each_seed_its_own_actions_at_its_own_step():
    taken = {5: np.arange(6, dtype=np.float32).reshape(3, 2), 9: -np.arange(4, dtype=np.float32).reshape(2, 2)}
    policy = Replay(taken)
    at = [Key(9).stream("policy").key(0), Key(5).stream("policy").key(2), Key(9).stream("policy").key(7)]
    action = policy.act({}, [""] * 3, {}, at).action
    np.testing.assert_array_equal(action, [taken[9][0], taken[5][2], taken[9][1]])


def test_a_replay_is_known_by_its_actions(recorded):
    taken = {5: np.zeros((3, 2), np.float32), 9: np.ones((2, 2), np.float32)}
    known = Replay(taken).fingerprint
    assert Replay(dict(reversed(taken.items()))).fingerprint == known
    changed = {5: taken[5], 9: np.nextafter(taken[9], 2, dtype=np.float32)}
    others = [changed, {5: taken[5]}, {5: taken[5], 8: taken[9]}, {5: taken[5], 9: taken[9].astype(np.float64)}]
    assert len({known, *(Replay(other).fingerprint for other in others)}) == 5
    assert Replay(taken, past_end="raise").fingerprint != known
    from_run = Replay.from_run(recorded, policy="b")
    rows = recorded.episodes.query("policy == 'b' and status == 'done'")
    assert from_run.fingerprint == Replay({row.seed: recorded[row.id].action for row in rows.itertuples()}).fingerprint


def test_replay_past_the_end_raises_when_told_to():
    policy = Replay({5: np.zeros((3, 2), dtype=np.float32)}, past_end="raise")
    with pytest.raises(ConfigError, match="3 actions, none for step 3"):
        policy.act({}, [""], {}, [Key(5).stream("policy").key(3)])
    with pytest.raises(ConfigError, match="available: hold, raise"):
        Replay({}, past_end="loop")  # type: ignore[arg-type]


def test_replay_names_an_unknown_seed():
    with pytest.raises(ConfigError, match="policy seed 6"):
        Replay({5: np.zeros((3, 2), dtype=np.float32)}).act({}, [""], {}, [Key(6).stream("policy").key(0)])


def test_replay_refuses_actions_of_another_shape():
    with pytest.raises(ConfigError, match=r"\(7,\)"):
        Replay({5: np.zeros((3, 7), dtype=np.float32)}).bind(SPEC)


@pytest.fixture
def recorded(tmp_path) -> Run:
    """Two policies on the same two starts, and a rollout that never ran."""
    episodes = [made_episode(made_rollout(name, "push", i), i == 0, length=9) for name in ("a", "b") for i in (0, 1)]
    return write_made_run(tmp_path / "run", episodes, pending=[made_rollout("a", "push", 2)])


def test_replay_reads_the_actions_of_one_policy_of_a_run(recorded):
    policy = Replay.from_run(recorded.path, policy="b")
    for row in recorded.episodes.query("policy == 'b'").itertuples():
        expected = recorded[row.id].action
        for step in (0, 4, 8):
            action = policy.act({}, [""], {}, [Key(row.seed).stream("policy").key(step)]).action
            np.testing.assert_array_equal(action[0], expected[step])


def test_replay_of_a_run_refuses_what_is_ambiguous_or_absent(recorded, tmp_path):
    with pytest.raises(ConfigError, match="name the one to replay: a, b"):
        Replay.from_run(recorded)
    with pytest.raises(ConfigError, match="unknown policy"):
        Replay.from_run(recorded, policy="c")
    twins = list(recorded.episodes.query("status == 'done'").id)
    with pytest.raises(ConfigError, match="cannot tell them apart"):
        Replay.from_run(recorded, rollouts=twins)
    with pytest.raises(TraceError, match="does not exist"):
        Replay.from_run(tmp_path / "elsewhere")


def test_a_replayed_run_is_the_recorded_one(tmp_path):
    world = ToySimulator(3)
    rollouts = [Rollout(world.start(task, 1), seed=i, horizon=60, policy="p") for i, task in enumerate(world.tasks)]
    originals = run(together(rollouts), world, {"p": ToyGaussian()})
    recorded = write_made_run(tmp_path / "run", originals)
    replayed = run(together(rollouts), ToySimulator(2), {"p": Replay.from_run(recorded)})
    for original, again in zip(originals, replayed, strict=True):
        np.testing.assert_array_equal(original.action, again.action)
        np.testing.assert_array_equal(original.observation["state"], again.observation["state"])


def test_the_shipped_configurations_build():
    folder = files("configs") / "policy"
    loaded = {name: yaml.safe_load((folder / f"{name}.yaml").read_text()) for name in _SHIPPED}
    assert all(entry["name"] == name for name, entry in loaded.items())
    from hydra.utils import instantiate
    from omegaconf import OmegaConf

    expert = {"_target_": "simeval.testing.ToyExpert"}
    for name in ("expert", "noisy_expert", "uniform", "constant"):
        merged = OmegaConf.create({"world": {"expert": expert}, "policy": loaded[name]})
        arguments = OmegaConf.to_container(merged, resolve=True)["policy"]
        policy = instantiate({key: value for key, value in arguments.items() if key != "name"})
        assert isinstance(policy.bind(SPEC), Policy)


_SHIPPED = ("expert", "noisy_expert", "uniform", "constant", "replay")
