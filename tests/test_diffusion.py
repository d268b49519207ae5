"""The diffusion policy: its denoising against diffusers' own loops, its learning, and its determinism."""

import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers.schedulers.scheduling_ddim import DDIMScheduler
from diffusers.schedulers.scheduling_ddpm import DDPMScheduler

from learning.words import Vocabulary
from policies.diffusion import DiffusionPolicy
from policies.learned import checkpoint
from policies.learned.chunks import NetworkChunks
from policies.learned.features import Batch, Features, Inputs
from policies.learned.policy import learned
from simeval.errors import ConfigError
from simeval.noise import Key, StepKey
from simeval.testing import ToySimulator, assert_conforms, check_policy

torch.set_num_threads(1)  # tests run side by side
FEATURES = Features({"image_front": 32}, {"proprio": 3}, action_dim=2, horizon=8, control_dt=0.05)
BLIND = dataclasses.replace(FEATURES, images={})
SENTENCES = ("push the red puck", "reach for the blue zone")
SMALL = {"dim": 32, "heads": 2, "context_depth": 1, "width": 8, "channels": (16, 24)}


def network(features: Features = FEATURES, sentences: Sequence[str] = SENTENCES, **changes) -> DiffusionPolicy:
    torch.manual_seed(0)
    made = DiffusionPolicy(features, Vocabulary.of(sentences), **{**SMALL, **changes})
    rng = np.random.default_rng(0)
    made.number_statistics.fit(rng.normal(1.0, 2.0, (100, features.number_dim)))
    made.action_statistics.fit(rng.normal(0.0, 0.3, (100, features.action_dim)))
    return made.eval()


def inputs(count: int, sentence: str = SENTENCES[0]) -> Inputs:
    draws = torch.Generator().manual_seed(3)
    images = {"image_front": torch.randint(0, 256, (count, 3, 32, 32), generator=draws, dtype=torch.uint8)}
    tokens = Vocabulary.of(SENTENCES).encode([sentence] * count)
    return Inputs(images, torch.randn(count, 3, generator=draws), tokens)


def schedule_of(made: DiffusionPolicy) -> dict:
    return {
        "num_train_timesteps": made.settings["diffusion_steps"],
        "beta_schedule": "squaredcos_cap_v2",
        "prediction_type": "v_prediction",
        "timestep_spacing": "trailing",
        "clip_sample": False,
    }


@torch.no_grad()
@pytest.mark.parametrize(("steps", "eta"), [(10, 0.0), (10, 0.5), (20, 1.0)])
def test_denoising_is_the_loop_of_diffusers_ddim(steps: int, eta: float) -> None:
    made = network(steps=steps, diffusion_steps=20, eta=eta)
    summary, _ = made.encode(inputs(3))
    noise = torch.randn(3, *made.noise_shape, generator=torch.Generator().manual_seed(1))
    theirs = DDIMScheduler(**schedule_of(made))
    theirs.set_timesteps(steps)
    x = noise[:, 0]
    for index, moment in enumerate(theirs.timesteps, 1):
        found = made.velocity(x, moment.expand(3), summary)
        drawn = noise[:, index] if index < noise.shape[1] else torch.zeros_like(x)
        x = theirs.step(found, int(moment), x, eta=eta, variance_noise=drawn).prev_sample
    torch.testing.assert_close(made.denoise(summary, noise), x, rtol=0, atol=0)


@torch.no_grad()
@pytest.mark.parametrize("steps", [5, 20])
def test_with_eta_1_denoising_is_diffusers_ddpm_with_the_same_draws(steps: int) -> None:
    made = network(steps=steps, diffusion_steps=20, eta=1.0)
    summary, _ = made.encode(inputs(3))
    first = torch.randn(3, 8, 2, generator=torch.Generator().manual_seed(1))
    theirs = DDPMScheduler(**schedule_of(made))
    theirs.set_timesteps(steps)
    generator, x = torch.Generator().manual_seed(2), first
    for moment in theirs.timesteps:
        found = made.velocity(x, moment.expand(3), summary)
        x = theirs.step(found, int(moment), x, generator=generator).prev_sample
    generator = torch.Generator().manual_seed(2)
    later = [torch.randn(3, 8, 2, generator=generator) for _ in range(steps - 1)]
    assert made.noise_shape == (steps, 8, 2)
    torch.testing.assert_close(made.denoise(summary, torch.stack([first, *later], 1)), x, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_denoising_keeps_no_state_between_calls() -> None:
    made = network()
    noise = torch.randn(2, *made.noise_shape, generator=torch.Generator().manual_seed(1))
    before = made.predict(inputs(2), noise).chunk
    made.predict(inputs(2, SENTENCES[1]), 2 * noise)
    torch.testing.assert_close(made.predict(inputs(2), noise).chunk, before, rtol=0, atol=0)


@pytest.mark.slow
def test_it_learns_a_few_chunks_by_heart_each_under_its_own_observation_and_sentence() -> None:
    made = network(BLIND, draws=8).train()
    generator = torch.Generator().manual_seed(0)
    optimiser = torch.optim.Adam(made.parameters(), 2e-3)
    seen = inputs(4)
    tokens = torch.cat([Vocabulary.of(SENTENCES).encode([sentence] * 2) for sentence in SENTENCES])
    same = Inputs({}, seen.numbers[[0, 1, 0, 1]], tokens)
    target = 0.3 * torch.randn(4, 8, 2, generator=generator)
    losses = []
    for _ in range(250):
        optimiser.zero_grad()
        loss = made.loss(Batch(same, target, same.numbers[:, None].expand(-1, 2, -1)), generator)
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert np.mean(losses[-20:]) < 0.2 * np.mean(losses[:5])
    with torch.no_grad():
        noise = torch.randn(4, *made.noise_shape, generator=generator)
        found = made.eval().predict(same, noise).chunk
    assert float((found - target).abs().mean()) < 0.06


@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_a_checkpoint_gives_the_network_back_bit_for_bit(tmp_path: Path, eta: float) -> None:
    made = network(eta=eta)
    checkpoint.save(tmp_path / "policy", made, {"by": "a test"})
    noise = torch.randn(2, *made.noise_shape, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        again = checkpoint.load(tmp_path / "policy").predict(inputs(2), noise).chunk
        torch.testing.assert_close(again, made.predict(inputs(2), noise).chunk, rtol=0, atol=0)


def test_a_row_is_a_function_of_its_observation_its_sentence_and_its_key(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "policy", network(), {"by": "a test"})
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


def test_it_conforms_as_a_policy(tmp_path: Path) -> None:
    features = Features({}, {"state": 12}, action_dim=2, horizon=4, control_dt=0.05)
    sentences = [ToySimulator(1).start(task, 0).instruction for task in ToySimulator.tasks]
    made = network(features, sentences, steps=2, diffusion_steps=4, eta=1.0)
    checkpoint.save(tmp_path / "policy", made, {"by": "a test"})
    policy = partial(learned, tmp_path / "policy", execute=2, batch_size=4, device="cpu")
    assert_conforms(check_policy(policy, ToySimulator, steps=6))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"channels": (16, 24, 32, 40, 48)}, "a multiple of 16; received horizon=8"),
        ({"channels": ()}, "0 levels"),
        ({"steps": 7}, "a multiple of steps"),
        ({"eta": 1.5}, "between 0"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes: dict, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        network(**changes)
