"""The vision-language-action policy: its network, its checkpoint, and its determinism, at the size of a toy."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from learning.network import Normaliser
from learning.words import UNKNOWN, Vocabulary
from policies.chunked import Chunked
from policies.learned import checkpoint
from policies.learned.chunks import NetworkChunks
from policies.learned.features import Batch, Features, Inputs
from policies.vla import VisionLanguageAction
from simeval.errors import ConfigError, InstructionError
from simeval.noise import Key, StepKey
from simeval.types import WorldSpec

torch.set_num_threads(1)  # tests run side by side
FEATURES = Features({"image_front": 32}, {"proprio": 3}, action_dim=2, horizon=4, control_dt=0.05)
SENTENCES = ("push the red puck", "reach for the blue zone")
SPEC = WorldSpec(
    "toy",
    gymnasium.spaces.Dict(
        {
            "image_front": gymnasium.spaces.Box(0, 255, (32, 32, 3), np.uint8),
            "proprio": gymnasium.spaces.Box(-1, 1, (3,), np.float32),
        }
    ),
    gymnasium.spaces.Box(-1, 1, (2,), np.float32),
    0.05,
    ("push",),
)


def network(head: str = "flow", seed: int = 0) -> VisionLanguageAction:
    torch.manual_seed(seed)
    made = VisionLanguageAction(FEATURES, Vocabulary.of(SENTENCES), head, 32, 2, 2, 1, 8)
    rng = np.random.default_rng(seed)
    made.number_statistics.fit(rng.normal(1.0, 2.0, (100, 3)))
    made.action_statistics.fit(rng.normal(0.0, 0.3, (100, 2)))
    for parameter in made.parameters():  # what starts at zero would hide what depends on it
        torch.nn.init.normal_(parameter, std=0.1)
    return made.eval()


@pytest.fixture(params=["flow", "gaussian"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    checkpoint.save(tmp_path / "policy", network(request.param), {"by": "a test"})
    return tmp_path / "policy"


def observation(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "image_front": rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8),
        "proprio": rng.normal(size=(count, 3)).astype(np.float32),
    }


def keys(count: int, step: int = 0) -> list[StepKey]:
    return [Key(row).stream("policy").key(step) for row in range(count)]


def inputs(count: int, sentence: str = SENTENCES[0]) -> Inputs:
    seen = observation(count)
    images = {"image_front": torch.from_numpy(np.moveaxis(seen["image_front"], -1, 1).copy())}
    tokens = Vocabulary.of(SENTENCES).encode([sentence] * count)
    return Inputs(images, torch.from_numpy(seen["proprio"]), tokens)


def test_a_checkpoint_gives_the_network_back_bit_for_bit(folder: Path) -> None:
    head = json.loads((folder / "config.json").read_text())["settings"]["head"]
    noise = torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = network(head).predict(inputs(3), noise)
        found = checkpoint.load(folder).predict(inputs(3), noise)
    torch.testing.assert_close(found.chunk, expected.chunk, rtol=0, atol=0)


def test_weights_stored_in_half_are_half_the_size_and_come_back_rounded_with_exact_statistics(tmp_path: Path) -> None:
    for stored in ("float32", "float16"):
        checkpoint.save(tmp_path / stored, network(), {}, stored)
    sizes = [(tmp_path / stored / "model.safetensors").stat().st_size for stored in ("float32", "float16")]
    assert sizes[1] < 0.6 * sizes[0]
    found, made = checkpoint.load(tmp_path / "float16"), network()
    rounded = {name: value.half().float() for name, value in made.named_parameters()}
    for name, value in found.state_dict().items():
        assert value.dtype == torch.float32
        torch.testing.assert_close(value, rounded.get(name, made.state_dict()[name]), rtol=0, atol=0)
    with pytest.raises(ConfigError, match="float8"):
        checkpoint.save(tmp_path / "other", network(), {}, "float8")


def test_draws_that_share_a_context_are_read_as_if_each_had_its_own() -> None:
    made = network()
    with torch.no_grad():
        context, summary, _ = made.encode(inputs(3))
        repeated = [tuple(part.repeat_interleave(2, 0) for part in layer) for layer in context]
        point, time = torch.randn(6, 4, 2), torch.rand(6)
        shared = made.velocity(point, time, context, summary.repeat_interleave(2, 0))
        own = made.velocity(point, time, repeated, summary.repeat_interleave(2, 0))
    torch.testing.assert_close(shared, own)


def test_a_row_is_a_function_of_its_observation_its_sentence_and_its_key(folder: Path) -> None:
    model = NetworkChunks(folder)
    seen, said = observation(4), [SENTENCES[0]] * 4
    whole = model.predict(seen, said, keys(4)).chunk
    order = [2, 0, 3, 1]
    shuffled = model.predict(
        {key: value[order] for key, value in seen.items()}, said, [keys(4)[row] for row in order]
    ).chunk
    np.testing.assert_array_equal(shuffled, whole[order])
    assert not np.array_equal(model.predict(seen, said, keys(4, step=1)).chunk, whole)
    assert not np.array_equal(model.predict(seen, [SENTENCES[1]] * 4, keys(4)).chunk, whole)
    for key in seen:
        other = {**seen, key: observation(4, seed=9)[key]}
        assert not np.array_equal(model.predict(other, said, keys(4)).chunk, whole), key


def test_padding_words_change_nothing() -> None:
    vocabulary = Vocabulary.of(SENTENCES)
    roomier = Vocabulary(vocabulary.words, vocabulary.length + 4)
    torch.manual_seed(0)
    made = network()
    wide = VisionLanguageAction(FEATURES, roomier, "flow", 32, 2, 2, 1, 8).eval()
    state = made.state_dict()
    place = "observer.word_place"
    state[place] = torch.cat([state[place], torch.randn(1, 4, 32)], 1)
    wide.load_state_dict(state)
    seen = inputs(2)
    padded = Inputs(seen.images, seen.numbers, roomier.encode([SENTENCES[0]] * 2))
    noise = torch.randn(2, 4, 2)
    with torch.no_grad():
        torch.testing.assert_close(made.predict(seen, noise).chunk, wide.predict(padded, noise).chunk)


@pytest.mark.slow
def test_the_flow_learns_where_the_data_are() -> None:
    made, seen = network().train(), inputs(16)
    generator = torch.Generator().manual_seed(0)
    optimiser = torch.optim.Adam(made.parameters(), 3e-3)
    target = torch.tensor([0.3, -0.2]).expand(16, 4, 2)
    for _ in range(120):
        optimiser.zero_grad()
        loss = made.loss(Batch(seen, target, seen.numbers[:, None].expand(-1, 2, -1)), generator)
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        found = made.eval().predict(inputs(16), torch.randn(16, 4, 2, generator=generator)).chunk
    np.testing.assert_allclose(found.mean((0, 1)), [0.3, -0.2], atol=0.06)


@pytest.mark.slow
def test_a_pointer_finds_what_a_word_names_and_nothing_else_of_the_picture() -> None:
    torch.manual_seed(0)
    vocabulary, side = Vocabulary.of(["red", "blue"]), 48
    features = Features({"image_front": side}, {"proprio": 2}, 2, 4, 0.05)
    made = VisionLanguageAction(features, vocabulary, "flow", 32, 2, 1, 1, 8).train()
    made.number_statistics.fit(np.random.default_rng(0).uniform(-1, 1, (1000, 2)))
    made.action_statistics.fit(np.random.default_rng(0).normal(size=(1000, 2)))

    def scenes(count: int, seed: int) -> tuple[Inputs, torch.Tensor]:
        """Two squares on grey, and the middle of the one that is named, which is where the hand goes."""
        draws = np.random.default_rng(seed)
        images = torch.full((count, 3, side, side), 120, dtype=torch.uint8)
        corner = draws.integers(0, side - 8, (count, 2, 2))
        named = draws.integers(0, 2, count)
        for row in range(count):
            for square in (1 - named[row], named[row]):
                down, right = corner[row, square]
                colour = torch.tensor([[220, 30, 30], [30, 30, 220]][square], dtype=torch.uint8)
                images[row, :, down : down + 8, right : right + 8] = colour[:, None, None]
        middle = (corner[np.arange(count), named] + 3.5) / (side - 1) * 2 - 1
        tokens = vocabulary.encode([("red", "blue")[word] for word in named])
        return Inputs({"image_front": images}, torch.zeros(count, 2), tokens), torch.from_numpy(middle).float()

    optimiser = torch.optim.Adam(made.parameters(), 2e-3)
    generator = torch.Generator().manual_seed(0)
    for step in range(150):
        seen, middle = scenes(32, step)
        loss = made.loss(Batch(seen, torch.zeros(32, 4, 2), middle[:, None].expand(-1, 2, -1)), generator)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    seen, middle = scenes(200, 10_000)
    with torch.no_grad():
        _, _, observed = made.eval().encode(seen)
        swapped = replace(
            seen, tokens=vocabulary.encode(["red"] * 200) + vocabulary.encode(["blue"] * 200) - seen.tokens
        )
        _, _, other = made.encode(swapped)
    later = made.number_statistics(middle)[:, None].expand(-1, 2, -1)
    assert float(observed.foresight_error(later)) < 0.1
    assert float(other.foresight_error(later)) > 1.0


@pytest.mark.slow
def test_the_gaussian_heads_density_is_that_of_its_samples() -> None:
    made = network("gaussian")
    noise = torch.randn(4000, 4, 2, generator=torch.Generator().manual_seed(0))
    one = inputs(1)
    many = Inputs(
        {key: value.expand(4000, -1, -1, -1) for key, value in one.images.items()},
        one.numbers.expand(4000, -1),
        one.tokens.expand(4000, -1),
    )
    with torch.no_grad():
        predicted = made.predict(many, noise)
    assert predicted.log_prob is not None
    assert predicted.entropy is not None
    mean, std = predicted.chunk.mean(0), predicted.chunk.std(0)
    expected = torch.distributions.Normal(mean, std).log_prob(predicted.chunk).sum(-1)
    assert float((expected - predicted.log_prob).abs().mean()) < 0.1
    torch.testing.assert_close(-predicted.log_prob.mean(0), predicted.entropy.mean(0), atol=0.1, rtol=0)


def test_the_policy_reports_density_and_disagreement(folder: Path) -> None:
    model = NetworkChunks(folder, samples=3)
    policy = Chunked(model, execute=2, batch_size=2).bind(SPEC)
    memory = policy.initial_memory(3)
    seen = observation(3)
    first = policy.act(seen, [SENTENCES[0]] * 3, memory, keys(3))
    second = policy.act(seen, [SENTENCES[0]] * 3, first.memory, keys(3, 1))
    assert (first.extras["disagreement"] > 0).all()
    np.testing.assert_array_equal(first.extras["disagreement"], second.extras["disagreement"])
    assert (first.log_prob is None) == (not model.has_density)
    if first.log_prob is not None and second.log_prob is not None:
        assert not np.array_equal(first.log_prob, second.log_prob)


def test_a_constant_dimension_is_shifted_and_not_divided() -> None:
    normaliser = Normaliser(2)
    normaliser.fit(np.stack([np.full(50, 7.0), np.arange(50.0)], axis=1))
    scaled = normaliser(torch.tensor([[7.0, 0.0], [7.5, 49.0]]))
    assert scaled[0, 0] == 0.0
    assert scaled[1, 0] == 0.5
    torch.testing.assert_close(normaliser.invert(scaled), torch.tensor([[7.0, 0.0], [7.5, 49.0]]))


def _altered(folder: Path, change: Mapping[str, object]) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **change}))


def _reweighted(folder: Path, **change: torch.Tensor | None) -> None:
    weights = {**load_file(folder / "model.safetensors"), **change}
    save_file({name: value for name, value in weights.items() if value is not None}, folder / "model.safetensors")


def _broken(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    name = next(name for name, value in weights.items() if name.endswith("weight") and value.is_floating_point())
    weights[name].view(-1)[-1] = torch.nan
    save_file(weights, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda f: _altered(f, {"kind": "os.system"}), "unknown kind of policy 'os.system'"),
        (lambda f: _altered(f, {"settings": {"dim": 32, "payload": "x"}}), "payload"),
        (lambda f: _altered(f, {"format": "lerobot"}), "simeval-policy/1"),
        (lambda f: _reweighted(f, **{"action_statistics.mean": None}), "missing: action_statistics.mean"),
        (lambda f: _reweighted(f, **{"action_statistics.scale": torch.zeros(2)}), "not positive"),
        (lambda f: _reweighted(f, **{"number_statistics.mean": torch.full((3,), torch.nan)}), "not finite"),
        (lambda f: _reweighted(f, **{"number_statistics.mean": torch.zeros(5)}), "of another shape"),
        (lambda f: _reweighted(f, extra=torch.zeros(1)), "not known: extra"),
        (lambda f: _broken(f), r"weights that are not finite: \S+weight"),
        (lambda f: (f / "model.safetensors").write_bytes(b"\x80\x04nothing"), "incomplete or damaged"),
        (lambda f: (f / "config.json").unlink(), "no checkpoint"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_and_says_why(folder: Path, damage, told: str) -> None:
    damage(folder)
    with pytest.raises(ConfigError, match=told):
        checkpoint.load(folder)


def test_statistics_that_were_never_fitted_are_not_saved(tmp_path: Path) -> None:
    made = VisionLanguageAction(FEATURES, Vocabulary.of(SENTENCES), dim=32, heads=2, depth=1, context_depth=1, width=8)
    with pytest.raises(ConfigError, match="fit its statistics"):
        checkpoint.save(tmp_path, made, {})


def test_a_world_that_shows_something_else_is_refused_with_all_that_differs(folder: Path) -> None:
    spaces = {"image_front": gymnasium.spaces.Box(0, 255, (64, 64, 3), np.uint8)}
    spec = WorldSpec("w", gymnasium.spaces.Dict(spaces), gymnasium.spaces.Box(-1, 1, (7,)), 0.1, ("t",))
    with pytest.raises(ConfigError, match=r"\(64, 64, 3\).*no observation 'proprio'.*\(7,\).*0.1 s, not 0.05 s"):
        Chunked(NetworkChunks(folder), 2, 2).bind(spec)


def test_words_are_read_without_case_and_punctuation() -> None:
    vocabulary = Vocabulary.of(SENTENCES)
    np.testing.assert_array_equal(vocabulary.encode(["Push the red puck!"]), vocabulary.encode([SENTENCES[0]]))
    assert vocabulary.encode(["push the chartreuse puck"])[0, 2] == UNKNOWN
    longer = " ".join(["word"] * vocabulary.length)
    assert vocabulary.encode([longer]).shape == (1, vocabulary.length)
    assert vocabulary.length > 2 * max(len(sentence.split()) for sentence in SENTENCES)
    with pytest.raises(InstructionError, match=f"reads 1 to {vocabulary.length}"):
        vocabulary.encode([longer + " more"])
    with pytest.raises(InstructionError, match="0 words"):
        vocabulary.encode(["…"])


def test_a_device_that_is_not_there_is_named(folder: Path) -> None:
    with pytest.raises(ConfigError, match="cpu, cuda or auto"):
        NetworkChunks(folder, device="tpu9")
