"""Learning from traces: splits by episode, chunks that end with the episode, trainings that go on where they stood."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

from learning.optimisation import schedule
from learning.words import PADDING, UNKNOWN
from policies.learned.behaviour_cloning import BehaviourCloning, Recipe
from policies.learned.chunks import NetworkChunks
from policies.learned.demonstrations import Demonstrations
from policies.learned.features import Batch
from policies.noisy import ActionNoise
from policies.vla import VisionLanguageAction
from simeval.errors import ConfigError, DivergedError
from simeval.evaluation import evaluate
from simeval.noise import Key
from simeval.reader import Run
from simeval.testing import ToyExpert, ToySimulator
from simeval.types import TimeStep
from simeval.wrappers import Delegate

torch.set_num_threads(1)  # tests run side by side
KEYS = ("image_top", "state")


class Seen(Delegate):
    """The toy simulator with a picture of where its disc is."""

    def __init__(self) -> None:
        super().__init__(ToySimulator(4))
        picture = gymnasium.spaces.Box(0, 255, (24, 24, 3), np.uint8)
        self.observation_space = gymnasium.spaces.Dict({**self.observation_space.spaces, "image_top": picture})

    def _shown(self, step: TimeStep) -> TimeStep:
        state = np.asarray(step.observation["state"])
        images = np.zeros((len(state), 24, 24, 3), np.uint8)
        at = np.clip((state[:, :2] + 1) * 12, 0, 23).astype(int)
        images[np.arange(len(state)), at[:, 1], at[:, 0]] = 255
        return dataclasses.replace(step, observation={**step.observation, "image_top": images})

    def reset(self, *arguments):
        return self._shown(super().reset(*arguments))

    def step(self, *arguments):
        return self._shown(super().step(*arguments))

    def restore(self, *arguments):
        return self._shown(super().restore(*arguments))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    path = tmp_path_factory.mktemp("demonstrations") / "run"
    evaluate(Seen(), {"clean": ToyExpert(), "noisy": ActionNoise(ToyExpert(), 0.2)}, episodes=12, path=path)
    return Run(path)


def demonstrations(run: Run, **changes) -> Demonstrations:
    return Demonstrations([run], KEYS, 4, 0.1, **{"validation": 0.25, **changes})


def test_the_split_is_by_episode_and_stays_as_more_is_recorded(run: Run) -> None:
    data = demonstrations(run)
    train, held = ({e.id for e in part} for part in (data.training, data.validation))
    assert train
    assert held
    assert not train & held
    assert train | held == {e.id for e in run if e.succeeded}
    fewer = demonstrations(run, tasks=[data.training[0].rollout.start.task])
    assert {e.id for e in fewer.validation} <= held


def test_a_chunk_is_what_was_meant_from_then_on_and_ends_with_the_episode(run: Run) -> None:
    data = demonstrations(run, memory=20_000)
    by_observation: dict[bytes, list[tuple[np.ndarray, np.ndarray]]] = {}  # paired episodes share their first
    for episode in data.training:
        noisy = episode.rollout.policy == "noisy"
        meant = episode.policy["intended"] if noisy else episode.action
        for step in range(episode.length):
            ahead = np.minimum(np.arange(step, step + 4), episode.length - 1)
            state = episode.observation["state"][step].astype(np.float32).tobytes()
            by_observation.setdefault(state, []).append((meant[ahead], episode.observation["image_top"][step]))
    seen = 0
    for batch, _ in zip(data.batches(8), range(40), strict=False):
        for row in range(8):
            candidates = by_observation[batch.inputs.numbers[row].numpy().tobytes()]
            image = batch.inputs.images["image_top"][row].permute(1, 2, 0).numpy()
            assert any(
                np.array_equal(batch.action[row].numpy(), action) and np.array_equal(image, seen_there)
                for action, seen_there in candidates
            )
            seen += 1
    assert seen == 320


def test_episodes_of_two_runs_that_were_asked_for_in_the_same_words_are_both_learned_from(tmp_path: Path) -> None:
    runs = []
    for sigma in (0.0, 0.15):
        path = tmp_path / str(sigma)
        evaluate(Seen(), {"noisy": ActionNoise(ToyExpert(), sigma)}, episodes=4, path=path)
        runs.append(Run(path))
    assert {e.id for e in runs[0]} == {e.id for e in runs[1]}
    data = Demonstrations(runs, ("state",), 4, 0.1, validation=0.0)
    batches = zip(data.batches(8), range(300), strict=False)
    seen = {row.numpy().tobytes() for batch, _ in batches for row in batch.inputs.numbers}
    for run in runs:
        rows = {row.tobytes() for e in run if e.succeeded for row in e.observation["state"][1:-1].astype(np.float32)}
        assert len(rows & seen) > 0.6 * len(rows)


@pytest.mark.parametrize("early", [None, 2.0])
@pytest.mark.parametrize("memory", [20_000, 1 << 30])
def test_batches_are_a_function_of_their_place(run: Run, memory: int, early: float | None) -> None:
    def batches(begin: int = 0) -> Iterator[Batch]:
        return demonstrations(run, memory=memory, early=early).batches(8, begin)

    first = [batch.action for batch, _ in zip(batches(), range(30), strict=False)]
    for begin in (0, 7, 29):
        again = next(batches(begin))
        torch.testing.assert_close(again.action, first[begin], rtol=0, atol=0)


def test_early_dwells_on_the_beginnings_of_episodes_and_none_is_seen_more_for_its_length(run: Run) -> None:
    def shares(early: float | None) -> tuple[float, float]:
        """Of the rows: those of the first quarter of their episode, and those of the longer half of the episodes."""
        data = demonstrations(run, early=early)
        places = {
            episode.observation["state"][step].astype(np.float32).tobytes(): (step / episode.length, episode.length)
            for episode in data.training
            for step in range(1, episode.length)  # paired episodes share their first
        }
        middle = np.median([episode.length for episode in data.training])
        rows = [row for batch, _ in zip(data.batches(8), range(250), strict=False) for row in batch.inputs.numbers]
        found = [places[row.numpy().tobytes()] for row in rows if row.numpy().tobytes() in places]
        return np.mean([place < 0.25 for place, _ in found]), np.mean([length > middle for _, length in found])

    alike, one, two = shares(None), shares(1.0), shares(2.0)
    assert two[0] > one[0] + 0.1
    assert one[1] < alike[1]
    with pytest.raises(ConfigError, match="early is a number above 0"):
        demonstrations(run, early=0.0)


@pytest.mark.parametrize("early", [None, 1.0])
def test_batches_have_the_numbers_at_the_ends_of_chunk_and_episode(run: Run, early: float | None) -> None:
    data = demonstrations(run, early=early)
    followed: dict[bytes, list[np.ndarray]] = {}
    for episode in data.training:
        state, last = episode.observation["state"].astype(np.float32), episode.length - 1
        for step in range(episode.length):
            followed.setdefault(state[step].tobytes(), []).append(state[[min(step + 4, last), last]])
    for batch, _ in zip(data.batches(8), range(20), strict=False):
        for now, later in zip(batch.inputs.numbers, batch.later, strict=True):
            assert any(np.array_equal(later.numpy(), expected) for expected in followed[now.numpy().tobytes()])


def training(run: Run, folder: Path, steps: int = 8, **changes) -> BehaviourCloning:
    data = demonstrations(run)
    torch.manual_seed(0)
    network = VisionLanguageAction(data.features, data.vocabulary, "flow", 32, 2, 1, 1, 8)
    recipe = Recipe(steps, batch_size=8, warmup=2, save_every=4, validate_every=4, **changes)
    return BehaviourCloning(network, data, recipe, folder)


def quiet(step: int, values: object) -> None:
    pass


def test_a_training_that_is_gone_on_with_ends_where_one_that_was_not_interrupted_does(run: Run, tmp_path: Path) -> None:
    whole = training(run, tmp_path / "whole")
    whole.run(quiet)
    part = training(run, tmp_path / "part")
    part.run(quiet, steps=4)
    again = training(run, tmp_path / "part")
    again.resume()
    assert again.step == 4
    again.run(quiet)
    for name, value in whole.network.state_dict().items():
        torch.testing.assert_close(again.network.state_dict()[name], value, rtol=0, atol=0, msg=name)
    assert (tmp_path / "whole" / "model.safetensors").read_bytes() == (
        tmp_path / "part" / "model.safetensors"
    ).read_bytes()
    with pytest.raises(ConfigError, match="another training"):
        training(run, tmp_path / "part", learning_rate=1e-2).resume()
    with pytest.raises(ConfigError, match="no training to go on with"):
        training(run, tmp_path / "nothing").resume()


@pytest.mark.slow
def test_training_lowers_the_error_on_episodes_that_it_never_saw(run: Run, tmp_path: Path) -> None:
    cloning = training(run, tmp_path / "learn", steps=120, learning_rate=3e-3)
    told: dict[int, dict[str, float]] = {}
    cloning.fit_statistics()
    before = cloning.validation_error()
    cloning.run(lambda step, values: told.setdefault(step, {}).update(values))
    assert cloning.validation_error() < 0.7 * before
    assert told[120]["validation_error"] == pytest.approx(cloning.validation_error())


def test_a_training_whose_loss_is_no_number_stops_and_keeps_its_last_checkpoint(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloning = training(run, tmp_path / "diverged")
    cloning.run(quiet, steps=4)
    saved = (tmp_path / "diverged" / "model.safetensors").read_bytes()
    sound = cloning.loss
    monkeypatch.setattr(cloning, "loss", lambda *given: sound(*given) * float("nan"))
    with pytest.raises(DivergedError, match="the loss is nan at step 4; lower learning_rate"):
        cloning.run(quiet)
    assert (tmp_path / "diverged" / "model.safetensors").read_bytes() == saved


def test_every_saved_checkpoint_is_shown_to_who_judges_it(run: Run, tmp_path: Path) -> None:
    shown: list[Path] = []
    cloning = training(run, tmp_path / "judged")
    cloning.run(quiet, judge=lambda folder: shown.append(folder) or {"success": 0.5})
    assert shown == [tmp_path / "judged"] * 2


def test_the_schedule_rises_and_falls() -> None:
    values = [schedule(step, 10, 100) for step in range(101)]
    assert values[0] < values[5] < values[9]
    assert values[9] == max(values)
    assert values[100] == 0.01


def test_what_is_not_there_to_learn_from_is_named(run: Run) -> None:
    with pytest.raises(ConfigError, match="image_wrist"):
        Demonstrations([run], ("image_wrist",), 4, 0.1)
    with pytest.raises(ConfigError, match=r"unknown task of .* 'reach-lift'; did you mean reach-left"):
        demonstrations(run, tasks=["reach-lift"])
    with pytest.raises(ConfigError, match="no successful episode"):
        Demonstrations([], ("state",), 4, 0.1)


def test_a_training_without_validation_runs_to_its_end(run: Run, tmp_path: Path) -> None:
    data = demonstrations(run, validation=0.0)
    network = VisionLanguageAction(data.features, data.vocabulary, "flow", 32, 2, 1, 1, 8)
    cloning = BehaviourCloning(network, data, Recipe(2, batch_size=8), tmp_path / "all")
    cloning.run(quiet)
    assert np.isnan(cloning.validation_error())


def test_a_policy_of_pictures_alone_is_trained_and_acts(run: Run, tmp_path: Path) -> None:
    data = Demonstrations([run], ("image_top",), 4, 0.1, validation=0.25)
    torch.manual_seed(0)
    network = VisionLanguageAction(data.features, data.vocabulary, "flow", 32, 2, 1, 1, 8)
    BehaviourCloning(network, data, Recipe(3, batch_size=8, warmup=1, hide_numbers=0.5), tmp_path).run(quiet)
    chunk = NetworkChunks(tmp_path).predict(
        {"image_top": np.zeros((2, 24, 24, 3), np.uint8)},
        [data.training[0].rollout.start.instruction] * 2,
        [Key(row).stream("policy").key(0) for row in range(2)],
    )
    assert chunk.chunk.shape == (2, 4, 2)


def test_hidden_words_are_unknown_ones_and_only_in_training(run: Run, tmp_path: Path) -> None:
    seen: list[torch.Tensor] = []

    class Watched(VisionLanguageAction):
        def encode(self, inputs):
            seen.append(inputs.tokens)
            return super().encode(inputs)

    data = demonstrations(run)
    torch.manual_seed(0)
    network = Watched(data.features, data.vocabulary, "flow", 32, 2, 1, 1, 8)
    work = BehaviourCloning(network, data, Recipe(4, batch_size=64, warmup=1, hide_words=0.25), tmp_path)
    work.run(quiet)
    hidden = [float((tokens == UNKNOWN).sum() / (tokens != PADDING).sum()) for tokens in seen]
    assert 0.15 < np.mean(hidden[:4]) < 0.35
    assert max(hidden[4:]) == 0


def test_hidden_numbers_are_shown_as_their_mean_and_only_in_training(run: Run, tmp_path: Path) -> None:
    seen: list[torch.Tensor] = []

    class Watched(VisionLanguageAction):
        def encode(self, inputs):
            seen.append(inputs.numbers)
            return super().encode(inputs)

    data = demonstrations(run)
    torch.manual_seed(0)
    network = Watched(data.features, data.vocabulary, "flow", 32, 2, 1, 1, 8)
    work = BehaviourCloning(network, data, Recipe(4, batch_size=64, warmup=1, hide_numbers=0.25), tmp_path)
    work.run(quiet)
    hidden = [float((numbers == network.number_statistics.mean).all(1).float().mean()) for numbers in seen]
    training, validation = hidden[:4], hidden[4:]
    assert 0.1 < np.mean(training) < 0.4
    assert validation
    assert max(validation) == 0
