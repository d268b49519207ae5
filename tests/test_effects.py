"""Effects in the engine: the identity, noise and memory that go with a rollout, and what nobody looks at."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from envs.dm_control import DmControl
from envs.gymnasium import GymnasiumWorld
from envs.metaworld import MetaWorld
from envs.ogbench import OGBench
from envs.perturbed import COMPONENTS
from envs.robosuite import Robosuite
from envs.tabletop import Tabletop
from policies.chunked import Chunked, ChunkModel, Prediction
from policies.clipped import Clipped
from simeval.episode import Checkpoint, Episode
from simeval.errors import ConfigError, UnsupportedError
from simeval.host import HostedWorld
from simeval.noise import StepKey
from simeval.perturbation import Effect, EffectMemory, Effects, effect_of, register_effect, registry
from simeval.policy import Memory, Policy, PolicyStep
from simeval.protocols import MonteCarlo, Setting, together
from simeval.reader import Run
from simeval.rollout import Engine, run
from simeval.schedule import Protocol
from simeval.store import IMAGES, MemoryStore, RunStore
from simeval.testing import ToySimulator, toy_policies
from simeval.types import Array, Observation, Perturbation, Rollout, TimeStep
from simeval.world import World
from simeval.wrappers import Delegate
from worldmodels.world import LearnedWorld

POLICIES = toy_policies()

LAG = Perturbation("actuation", params={"lag": 0.2, "noise": 0.05, "seed": 3})
LATE = Perturbation("dynamics.delay", params={"steps": 3})
FROZEN = Perturbation("sensor.dropout", params={"probability": 0.5, "mode": "frozen"})
NOISY = Perturbation("sensor", params={"noise": 12.0, "state": 0.01, "blur": 0.05, "jpeg": 40.0})
ALL = (LAG, LATE, FROZEN, NOISY)

ZERO = (
    Perturbation("identity"),
    Perturbation("actuation", 0, dict.fromkeys(("gain", "bias", "misalignment", "lag", "noise"), 0.0) | {"seed": 5}),
    Perturbation("dynamics.delay", 0, {"steps": 0}),
    Perturbation("sensor", 0, dict.fromkeys(("noise", "blur", "jpeg", "motion_blur", "proprio", "state"), 0)),
    Perturbation("sensor.dropout", 0, {"probability": 0, "camera": 0.5, "mode": "frozen"}),
    Perturbation("sensor.occlusion", 0, {"size": 0.0, "x": 0.2, "y": 0.9}),
    Perturbation("language", 0, {"edits": 0, "seed": 1}),
    Perturbation("language.clause", 0, {"clauses": 0, "seed": 1}),
    Perturbation("language.typo", 0, {"rate": 0.0, "seed": 1}),
    Perturbation("language.task", 0, {"redraws": 2}),
)


def arrays_of(episode: Episode) -> dict[str, np.ndarray]:
    return {path: episode.source.read(path) for path in episode.source.paths()}


def assert_same(one: Episode, other: Episode, begin: int = 0) -> None:
    first, second = arrays_of(one), arrays_of(other)
    assert first.keys() == second.keys()
    for path, array in second.items():
        assert array.dtype == first[path].dtype
        np.testing.assert_array_equal(first[path][begin:], array, err_msg=path)


class Steered(Policy):
    """Acts by how bright a picture is and by chance, whatever the World."""

    def __init__(self, picture: str, size: int):
        self.observation_keys = (picture,)
        self.size = size

    def act(
        self, observation: Observation, instruction: Sequence[str], memory: Memory, keys: Sequence[StepKey]
    ) -> PolicyStep:
        bright = observation[self.observation_keys[0]].reshape(len(keys), -1).mean(axis=1) / 255
        noise = np.stack([key.generator().uniform(-0.5, 0.5, self.size) for key in keys])
        told = np.array([len(text) % 7 for text in instruction]) / 100
        return PolicyStep((noise + 0.3 * bright[:, None] + told[:, None]).astype(np.float32), {})


WORLDS: Mapping[str, Callable[[], World]] = {
    "toy": lambda: ToySimulator(num_slots=2, cameras=("top",), image_size=32),
    "tabletop": lambda: Tabletop(num_slots=2, task="put_in_drawer", cameras=("front",), image_size=32),
    "metaworld": lambda: MetaWorld(num_slots=2, task="reach-v3"),
    "metaworld, fixed": lambda: MetaWorld(num_slots=2, task="drawer-open-v3"),
    "robosuite": lambda: Robosuite("Lift", num_slots=2, cameras=("agentview",), image_size=32),
    "gymnasium": lambda: GymnasiumWorld("HalfCheetah-v5", num_slots=2),
    "robotics": lambda: GymnasiumWorld("FetchPush-v4", num_slots=2, module="gymnasium_robotics"),
    "pusht": lambda: GymnasiumWorld("PushT-v0", num_slots=2, module="envs.pusht"),
    "dm_control": lambda: DmControl("cheetah-run", num_slots=2),
    "ogbench": lambda: OGBench("cube-single", num_slots=2),
    "learned": lambda: LearnedWorld(Path(str(files("assets") / "worldmodels" / "tabletop")), num_slots=2),
    "hosted": lambda: HostedWorld({"_target_": "envs.tabletop.Tabletop", "task": "stack", "num_slots": 2}),
}
SLOW = ("robosuite", "robotics", "ogbench", "hosted")


def nothing(world: World) -> tuple[Perturbation, ...]:
    """Perturbations of 0 of all axes: those around any World, and those that this one applies itself."""
    own = sorted(world.perturbation_axes & COMPONENTS.keys())
    return (*ZERO, *(Perturbation(axis, 0, dict.fromkeys(COMPONENTS[axis], 0.0)) for axis in own))


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in WORLDS])
def test_perturbations_whose_components_are_all_zero_change_no_bit(name: str) -> None:
    world = WORLDS[name]()
    keys = list(world.observation_space.spaces)
    key = next((key for key in keys if key.startswith("image_")), "state" if "state" in keys else keys[0])
    (start,) = world.starts(world.tasks[0], 1, 4)
    rollout = Rollout(start, seed=4, horizon=12)
    both = [rollout, replace(rollout, perturbations=nothing(world))]
    one, other = run(together(both), world, Clipped(Steered(key, world.action_space.shape[0])))
    world.close()
    assert one.status == "done"
    assert_same(one, other)
    assert replace(one.ending, wall_s=0) == replace(other.ending, wall_s=0)


def test_a_perturbation_that_is_not_zero_changes_what_it_is_of() -> None:
    world = ToySimulator(num_slots=2, cameras=("top",), image_size=32)
    plain = Rollout(world.start("push-left", 3), seed=8, horizon=12)
    variants = [replace(plain, perturbations=(one,)) for one in ALL]
    first, *others = run(together([plain, *variants]), world, Steered("image_top", 2))
    for episode in others:
        assert episode.status == "done"
        assert not np.array_equal(episode.observation["state"], first.observation["state"])
    dropped, noisy = others[2:]
    assert not np.array_equal(dropped.observation["image_top"][:6], first.observation["image_top"][:6])
    np.testing.assert_array_equal(noisy.signals["goal"], first.signals["goal"][: noisy.length + 1])


def family(keep: tuple[int, ...], **fork: Any) -> tuple[Episode, Episode]:
    world = ToySimulator(num_slots=3, cameras=("top",), image_size=24)

    def protocol() -> Protocol:
        root = Rollout(
            world.start("push-left", 3), seed=8, horizon=30, policy="eye", perturbations=ALL, snapshot_steps=keep
        )
        (parent,) = yield [root]
        (child,) = yield [parent.rollout.branch(11, **fork)]
        return parent, child

    return run(protocol(), world, {"eye": Steered("image_top", 2), "gaussian": POLICIES["gaussian"]})


@pytest.mark.parametrize("keep", [(), (0,), (4, 9, 20), (11,)], ids=["replayed", "from 0", "from 9", "from 11"])
def test_a_branch_goes_on_with_what_the_effects_remember(keep: tuple[int, ...]) -> None:
    parent, child = family(keep)
    assert child.status == "done"
    assert_same(parent, child, begin=11)


def test_a_checkpoint_holds_what_the_effects_remember_and_survives_bytes() -> None:
    parent, _ = family((0, 11))
    kept = parent.source.checkpoint(11)
    waiting = next(memory for name, memory in kept.effects.items() if name.startswith("dynamics.delay"))["waiting"]
    assert waiting.shape == (3, 2)
    again = Checkpoint.from_bytes(kept.to_bytes())
    assert again.to_bytes() == kept.to_bytes()
    np.testing.assert_array_equal(
        next(memory for name, memory in again.effects.items() if name.startswith("dynamics.delay"))["waiting"], waiting
    )
    assert not Checkpoint(0, kept.snapshot, {}, 0).effects


@pytest.mark.parametrize("keep", [(), (11,)])
def test_a_branch_may_be_given_further_effects_and_keeps_the_memories_of_its_own(keep: tuple[int, ...]) -> None:
    later = Perturbation("dynamics.delay", params={"steps": 2}, from_step=20)
    parent, child = family(keep, perturbations=(later,))
    np.testing.assert_array_equal(child.action[:9], parent.action[11:20])
    np.testing.assert_array_equal(child.action[9:11], np.zeros((2, 2)))


@pytest.mark.parametrize("name", ["learned", "gymnasium", "tabletop"])
def test_effects_act_in_learned_worlds_as_in_simulators(name: str) -> None:
    """The state is measured with noise, the action is biased, the sentence has clauses around it."""
    world = WORLDS[name]()
    (start,) = world.starts(world.tasks[0], 1, 4)
    noise = Perturbation("sensor", 8.0, {"state": 0.05})
    bias = Perturbation("actuation", 8.0, {"bias": 0.3, "seed": 2})
    clause = Perturbation("language.clause", 8.0, {"clauses": 2, "seed": 1})
    plain = Rollout(start, seed=4, horizon=12)
    rollouts = [plain, *(replace(plain, perturbations=(one,)) for one in (noise, bias, clause))]
    first, noisy, biased, told = run(together(rollouts), world, Steered("state", world.action_space.shape[0]))
    world.close()
    assert {episode.status for episode in (first, noisy, biased, told)} == {"done"}
    assert not np.array_equal(noisy.observation["state"][0], first.observation["state"][0])
    assert not np.array_equal(biased.action[0], first.action[0])
    assert told.instruction != first.instruction
    assert start.instruction.rstrip(".") in told.instruction


class Listener(Policy):
    """Keeps all that it is given."""

    observation_keys = ("image_top", "state")

    def __init__(self) -> None:
        self.given: list[Any] = []

    def act(
        self, observation: Observation, instruction: Sequence[str], memory: Memory, keys: Sequence[StepKey]
    ) -> PolicyStep:
        self.given.append((sorted(observation), list(instruction), observation["state"].copy()))
        return PolicyStep(np.zeros((len(keys), 2), np.float32), {})


def test_a_policy_is_not_told_which_perturbation_is_in_force() -> None:
    """It is given the same under a delay of a policy that does not move, which shows in nothing, as without."""

    def given(*perturbations: Perturbation) -> list[Any]:
        world, policy = ToySimulator(num_slots=1, cameras=("top",), image_size=16), Listener()
        rollout = Rollout(world.start("push-left", 3), seed=8, horizon=6, perturbations=perturbations)
        assert run(together([rollout]), world, policy)[0].status == "done"
        return policy.given

    marked = Perturbation("dynamics.delay", 77.125, {"steps": 2, "redraws": 13})
    plain, perturbed = given(), given(marked)
    assert len(plain) == len(perturbed) == 6
    for (keys, told, state), (other_keys, other_told, other_state) in zip(plain, perturbed, strict=True):
        assert (keys, told) == (other_keys, other_told)
        np.testing.assert_array_equal(state, other_state)


@pytest.mark.parametrize("slots", [1, 5])
def test_perturbed_results_do_not_depend_on_slots_or_order(slots: int) -> None:
    make = {"cameras": ("top",), "image_size": 24}
    world = ToySimulator(num_slots=2, **make)
    rollouts = [
        Rollout(world.start(task, seed), seed=seed, horizon=20, perturbations=ALL[: 1 + seed])
        for task in world.tasks[:2]
        for seed in range(4)
    ]
    policy = Steered("image_top", 2)
    found = run(together(rollouts), world, policy)
    again = run(together(rollouts[::-1]), ToySimulator(num_slots=slots, **make), policy)
    for one, other in zip(found, reversed(again), strict=True):
        assert_same(one, other)


def test_a_perturbation_has_the_same_noise_alone_and_among_others() -> None:
    world = ToySimulator(cameras=("top",), image_size=24)
    rollout = Rollout(world.start("push-left", 3), seed=8, horizon=30)
    observation = {"state": np.zeros(12), "image_top": np.full((24, 24, 3), 90, np.uint8)}
    typo = Perturbation("language.typo", params={"rate": 0.1})
    alone = Effects(rollout, [NOISY], world.spec).observation(observation, 5, {})[0]
    among = Effects(rollout, [typo, LAG, NOISY], world.spec).observation(observation, 5, {})[0]
    twice = Effects(rollout, [NOISY, NOISY], world.spec).observation(observation, 5, {})[0]
    np.testing.assert_array_equal(alone["image_top"], among["image_top"])
    np.testing.assert_array_equal(alone["state"], among["state"])
    assert abs(twice["state"] - 2 * alone["state"]).max() > 1e-3
    other = Effects(replace(rollout, seed=9), [NOISY], world.spec).observation(observation, 5, {})[0]
    assert not np.array_equal(other["state"], alone["state"])


def test_an_effect_acts_in_its_steps_alone() -> None:
    world = ToySimulator(num_slots=1, cameras=("top",), image_size=24)
    out = Perturbation("sensor.dropout", params={"probability": 1, "mode": "black"}, from_step=4, to_step=7)
    rollout = Rollout(world.start("push-left", 3), seed=8, horizon=10, perturbations=(out,))
    (episode,) = run(together([rollout]), world, POLICIES["expert"])
    black = [not frame.any() for frame in episode.observation["image_top"]]
    assert black == [4 <= step < 7 for step in range(11)]
    frozen = replace(out, params={"probability": 1, "mode": "frozen"})
    (episode,) = run(together([replace(rollout, perturbations=(frozen,))]), world, POLICIES["gaussian"])
    frames = episode.observation["image_top"]
    assert all(np.array_equal(frames[step], frames[4]) for step in (5, 6))


class Seeing(ChunkModel):
    """Moves by where its picture is bright."""

    horizon = 5
    action_dim = 2
    observation_keys = ("image_top",)
    fingerprint = "seeing"

    def predict(self, observation: Observation, instruction: Sequence[str], keys: Sequence[StepKey]) -> Prediction:
        bright = np.asarray(observation["image_top"], dtype=np.float64).mean(axis=(1, 3)) / 255
        wave = np.sin(40 * bright.mean(axis=1))
        return Prediction(np.broadcast_to(wave[:, None, None], (len(keys), 5, 2)).astype(np.float32))


class Watched(Delegate):
    """Leaves pictures that are not looked at black."""

    def advance(self, slots: Sequence[int], actions: Array, keys: Sequence[StepKey], looks: Sequence[bool]) -> TimeStep:
        result = self.world.step(slots, actions, keys)
        picture = result.observation["image_top"].copy()
        picture[~np.asarray(looks)] = 0
        return replace(result, observation={**result.observation, "image_top": picture})


@pytest.mark.parametrize("perturbation", [NOISY, FROZEN, LAG], ids=lambda one: one.axis)
def test_pictures_that_nobody_looks_at_change_nothing(perturbation: Perturbation) -> None:
    world = ToySimulator(num_slots=3, cameras=("top",), image_size=24)
    policy = Clipped(Chunked(Seeing(), execute=4, batch_size=2))
    rollouts = [
        Rollout(world.start("push-left", seed), seed=seed, horizon=20, perturbations=(perturbation,))
        for seed in range(4)
    ]
    recorded = run(together(rollouts), world, policy)
    keep = MemoryStore()
    with Engine(
        {"world": Watched(world)}, {"world": {"policy": policy}}, keep, keep=lambda path: not path.startswith(IMAGES)
    ) as engine:
        unseen = engine.run(together(rollouts))
    for one, other in zip(recorded, unseen, strict=True):
        np.testing.assert_array_equal(one.action, other.action)
        np.testing.assert_array_equal(one.observation["state"], other.observation["state"])


def test_a_picture_that_nobody_looks_at_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from simeval.perturbation.sensor import Sensor

    changed: list[int] = []
    picture = Sensor._picture
    monkeypatch.setattr(Sensor, "_picture", lambda self, *given: (changed.append(1), picture(self, *given))[1])
    world = ToySimulator(num_slots=1, cameras=("top",), image_size=24)
    rollout = Rollout(world.start("push-left", 0), seed=0, horizon=20, perturbations=(NOISY,))
    for policy, expected in ((Clipped(Chunked(Seeing(), execute=4, batch_size=1)), 6), (POLICIES["expert"], 0)):
        changed.clear()
        with Engine(
            {"world": world}, {"world": {"policy": policy}}, keep=lambda path: not path.startswith(IMAGES)
        ) as engine:
            (episode,) = engine.run(together([rollout]))
        assert episode.length == 20
        assert len(changed) == expected


def test_what_the_policy_was_told_is_in_the_trace(tmp_path: Any) -> None:
    world = ToySimulator(num_slots=1)
    start = world.start("push-left", 0)
    told = Perturbation("language.task", params={"instruction": "move to the right zone"})
    plain = Rollout(start, seed=0, horizon=5)
    (tmp_path / "run.json").write_text('{"run_id": "r", "config": {}}')
    run(together([plain, replace(plain, perturbations=(told,))]), world, POLICIES["expert"], RunStore(tmp_path))
    one, other = Run(tmp_path)
    assert (one.ending.told, one.instruction) == ("", start.instruction)
    assert other.instruction == other.ending.told == "move to the right zone"
    assert other.rollout.start.instruction == start.instruction
    assert not np.array_equal(one.action, other.action)


@pytest.mark.parametrize(
    ("axis", "params", "error", "text"),
    [
        (
            "sensor",
            {"blurr": 1.0},
            ConfigError,
            "unknown component of perturbation axis sensor 'blurr'; did you mean blur",
        ),
        ("sensor", {"blur": -1.0}, ConfigError, "blur is at least 0"),
        ("sensor", {"blur": "much"}, ConfigError, "blur is a number"),
        ("sensor", {"noise": 1.0}, UnsupportedError, "world 'toy' gives none; name its cameras"),
        ("sensor", {"proprio": 1.0}, UnsupportedError, "noise on proprio, which world 'toy' does not give"),
        ("sensor.dropout", {"probability": 1.5}, ConfigError, "probability is in 0..1"),
        ("sensor.dropout", {"probability": 1.0, "mode": "white"}, ConfigError, "unknown mode"),
        ("actuation", {"gains": 1.0}, ConfigError, "did you mean gain"),
        ("actuation", {"misalignment": 0.1}, UnsupportedError, "world 'toy' does not declare which numbers"),
        ("dynamics.delay", {"steps": 1.5}, ConfigError, "steps is a whole number"),
        ("dynamics.delay", {"steps": -1}, ConfigError, "steps is at least 0"),
        ("language", {"edit": 1}, ConfigError, "did you mean edits"),
        ("language.task", {"instruction": 3}, ConfigError, "instruction is a text"),
        ("language.typo", {"rate": 0.1, "seed": "a"}, ConfigError, "seed is a whole number"),
    ],
)
def test_what_is_no_change_is_refused_in_a_line_before_anything_runs(
    axis: str, params: dict[str, Any], error: type[Exception], text: str
) -> None:
    world = ToySimulator()
    with pytest.raises(error, match=text):
        effect_of(Perturbation(axis, params=params), world.spec)
    study = MonteCarlo(1, perturbations=(Perturbation(axis, params=params),))
    with pytest.raises(error, match=text):
        study.size(Setting({"world": world}, {"world": ["policy"]}, 0))


class Mirrored(Effect):
    observation_keys = ("image_top",)

    def observation(
        self, observation: dict[str, Any], memory: EffectMemory, key: StepKey
    ) -> tuple[dict[str, Any], EffectMemory]:
        return {name: picture[:, ::-1].copy() for name, picture in observation.items()}, memory


def test_an_effect_of_one_s_own_is_shown_what_it_changes_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_EFFECTS", dict(registry._EFFECTS))
    register_effect("sensor.mirror", lambda perturbation, spec: Mirrored())
    with pytest.raises(ValueError, match="registered already"):
        register_effect("sensor.mirror", lambda perturbation, spec: Mirrored())
    world = ToySimulator(num_slots=1, cameras=("top",), image_size=24)
    plain = Rollout(world.start("push-left", 3), seed=8, horizon=6)
    mirror = replace(plain, perturbations=(Perturbation("sensor.mirror"),))
    one, other = run(together([plain, mirror]), world, POLICIES["expert"])
    np.testing.assert_array_equal(one.observation["image_top"][:, :, ::-1], other.observation["image_top"])
    np.testing.assert_array_equal(one.observation["state"], other.observation["state"])


def test_an_unknown_camera_is_refused_with_those_that_exist() -> None:
    world = ToySimulator(cameras=("top",))
    with pytest.raises(ConfigError, match=r"unknown camera of world 'toy' 'front'; .*top, all"):
        effect_of(Perturbation("sensor.dropout", params={"probability": 1, "camera": "front"}), world.spec)


def test_an_instruction_cannot_change_in_the_middle_of_an_episode() -> None:
    late = Perturbation("language.typo", params={"rate": 0.1}, from_step=3)
    with pytest.raises(ConfigError, match="holds for the whole episode"):
        effect_of(late, ToySimulator().spec)
