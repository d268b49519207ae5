"""ACT: its styles, its learning, and its determinism."""

import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from learning.words import Vocabulary
from policies.act import ActionChunkingTransformer
from policies.learned import checkpoint
from policies.learned.chunks import NetworkChunks
from policies.learned.features import Batch, Features, Inputs
from policies.learned.policy import learned
from simeval.errors import ConfigError
from simeval.noise import Key, StepKey
from simeval.testing import ToySimulator, assert_conforms, check_policy

torch.set_num_threads(1)  # tests run side by side
FEATURES = Features({"image_front": 32}, {"proprio": 3}, action_dim=2, horizon=6, control_dt=0.05)
BLIND = dataclasses.replace(FEATURES, images={})
SENTENCES = ("push the red puck", "reach for the blue zone")
SMALL = {"dim": 32, "heads": 2, "depth": 2, "context_depth": 1, "style_depth": 1, "width": 8, "latent": 4}


def network(
    features: Features = FEATURES, sentences: Sequence[str] = SENTENCES, **changes
) -> ActionChunkingTransformer:
    torch.manual_seed(0)
    made = ActionChunkingTransformer(features, Vocabulary.of(sentences), **{**SMALL, **changes})
    rng = np.random.default_rng(0)
    made.number_statistics.fit(rng.normal(1.0, 2.0, (100, features.number_dim)))
    made.action_statistics.fit(rng.normal(0.0, 0.3, (100, features.action_dim)))
    return made.eval()


def inputs(count: int, sentence: str = SENTENCES[0]) -> Inputs:
    draws = torch.Generator().manual_seed(3)
    images = {"image_front": torch.randint(0, 256, (count, 3, 32, 32), generator=draws, dtype=torch.uint8)}
    tokens = Vocabulary.of(SENTENCES).encode([sentence] * count)
    return Inputs(images, torch.randn(count, 3, generator=draws), tokens)


def learn(made: ActionChunkingTransformer, seen: Inputs, target: torch.Tensor, steps: int) -> list[float]:
    made.train()
    generator = torch.Generator().manual_seed(0)
    optimiser = torch.optim.Adam(made.parameters(), 2e-3)
    losses = []
    for _ in range(steps):
        optimiser.zero_grad()
        loss = made.loss(Batch(seen, target, seen.numbers[:, None].expand(-1, 2, -1)), generator)
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    made.eval()
    return losses


@pytest.mark.slow
def test_it_learns_a_few_chunks_by_heart_each_under_its_own_observation_and_sentence() -> None:
    made, seen = network(BLIND), inputs(4)
    tokens = torch.cat([Vocabulary.of(SENTENCES).encode([sentence] * 2) for sentence in SENTENCES])
    same = Inputs({}, seen.numbers[[0, 1, 0, 1]], tokens)
    target = 0.3 * torch.randn(4, 6, 2, generator=torch.Generator().manual_seed(1))
    losses = learn(made, same, target, 200)
    assert np.mean(losses[-20:]) < 0.2 * np.mean(losses[:5])
    with torch.no_grad():
        found = made.predict(same, torch.zeros(4, 4)).chunk
    assert float((found - target).abs().mean()) < 0.06


@pytest.mark.slow
def test_styles_tell_apart_what_the_observation_does_not() -> None:
    made, one = network(BLIND, kl_weight=0.01, temperature=1.0), dataclasses.replace(inputs(1), images={})
    same = Inputs({}, one.numbers.expand(8, -1), one.tokens.expand(8, -1))
    target = 0.3 * torch.tensor([-1.0, 1.0]).repeat(4)[:, None, None].expand(8, 6, 2)
    learn(made, same, target, 200)
    with torch.no_grad():
        left, _ = made.style(same.numbers[:1], made.action_statistics(target[:1]))
        right, _ = made.style(same.numbers[:1], made.action_statistics(target[1:2]))
        chunks = [made.predict(one, style).chunk.mean() for style in (left, right)]
    assert float(chunks[0]) < -0.2
    assert float(chunks[1]) > 0.2


@torch.no_grad()
def test_the_divergence_is_that_of_the_styles_from_a_standard_normal() -> None:
    made, seen = network(), inputs(3)
    target = 0.3 * torch.randn(3, 6, 2, generator=torch.Generator().manual_seed(1))
    losses = []
    for weight in (0.0, 1.0):
        made.settings["kl_weight"] = weight
        losses.append(
            made.loss(Batch(seen, target, seen.numbers[:, None].expand(-1, 2, -1)), torch.Generator().manual_seed(2))
        )
    mean, log_variance = made.style(made.number_statistics(seen.numbers), made.action_statistics(target))
    styles = torch.distributions.Normal(mean, (log_variance / 2).exp())
    normal = torch.distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean))
    expected = torch.distributions.kl_divergence(styles, normal).sum(-1).mean()
    torch.testing.assert_close(losses[1] - losses[0], expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_at_temperature_0_the_key_changes_nothing_and_above_it_does() -> None:
    noise = torch.randn(2, 4, generator=torch.Generator().manual_seed(1))
    mean, drawn = network(), network(temperature=1.0)
    torch.testing.assert_close(
        mean.predict(inputs(2), noise).chunk, mean.predict(inputs(2), -noise).chunk, rtol=0, atol=0
    )
    assert not torch.equal(drawn.predict(inputs(2), noise).chunk, drawn.predict(inputs(2), -noise).chunk)
    torch.testing.assert_close(
        drawn.predict(inputs(2), 0 * noise).chunk, mean.predict(inputs(2), noise).chunk, rtol=0, atol=0
    )


def test_a_row_is_a_function_of_its_observation_its_sentence_and_its_key(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "policy", network(temperature=1.0), {"by": "a test"})
    model = NetworkChunks(tmp_path / "policy")
    rng = np.random.default_rng(0)
    seen = {
        "image_front": rng.integers(0, 256, (4, 32, 32, 3), dtype=np.uint8),
        "proprio": rng.normal(size=(4, 3)).astype(np.float32),
    }
    said, order = [SENTENCES[0]] * 4, [2, 0, 3, 1]

    def keys(step: int = 0) -> list[StepKey]:
        return [Key(row).stream("policy").key(step) for row in range(4)]

    whole = model.predict(seen, said, keys()).chunk
    shuffled = model.predict(
        {key: value[order] for key, value in seen.items()}, said, [keys()[row] for row in order]
    ).chunk
    np.testing.assert_array_equal(shuffled, whole[order])
    assert not np.array_equal(model.predict(seen, said, keys(1)).chunk, whole)
    assert not np.array_equal(model.predict(seen, [SENTENCES[1]] * 4, keys()).chunk, whole)
    for key, value in seen.items():
        assert not np.array_equal(model.predict({**seen, key: value[::-1].copy()}, said, keys()).chunk, whole), key


@pytest.mark.parametrize("execute", [None, 2])
def test_it_conforms_as_a_policy_ensembled_or_in_chunks(tmp_path: Path, execute: int | None) -> None:
    features = Features({}, {"state": 12}, action_dim=2, horizon=4, control_dt=0.05)
    sentences = [ToySimulator(1).start(task, 0).instruction for task in ToySimulator.tasks]
    checkpoint.save(tmp_path / "policy", network(features, sentences), {"by": "a test"})
    policy = partial(learned, tmp_path / "policy", execute=execute, batch_size=4, device="cpu")
    assert_conforms(check_policy(policy, ToySimulator, steps=6))


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="not negative"):
        network(temperature=-1.0)
