"""Policies on servers: the same episodes as in process, and what becomes of an episode when a server fails."""

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np
import pytest
from openpi_client import image_tools
from websockets.sync.client import connect

from policies.remote import ServerError, openpi, openvla, roboarena
from policies.remote.layout import PRESETS, fill, read_layout, resize_with_pad
from policies.remote.policies import UNKEYED
from simeval import Episode, Policy, Rollout, evaluate
from simeval.errors import ConfigError, UnsupportedError
from simeval.policy import PolicyStep
from simeval.rollout import run
from simeval.serve.messages import pack, unpack
from simeval.serve.service import PolicyService
from simeval.serve.serving import serving
from simeval.testing import assert_conforms, check_policy
from simeval.testing.checks import same_bits
from simeval.testing.toy_policies import ToyExpert, ToyGaussian, ToySmoother
from simeval.testing.toys import ToySimulator
from simeval.types import WorldSpec
from tests.serving_policies import key, scripted, toy_chunked

TOY = {"state": "state"}
GOOD = pack({"actions": np.full((3, 2), 0.25)})


def service(policy: Policy, **settings: Any) -> PolicyService:
    return PolicyService.of(policy, ToySimulator(num_slots=1), **settings)


def remote(url: str, **settings: Any) -> Policy:
    """A policy on a scripted server, impatient."""
    return openpi(url, **{"observation": TOY, "action_dim": 2, "execute": 2, "patience": 0.3, "timeout": 5, **settings})


def episodes(policy: Policy, slots: int = 3, **settings: Any) -> list[Episode]:
    tasks = {"tasks": ("reach-left", "push-right"), "episodes": 2, "horizon": 12}
    return evaluate(ToySimulator(num_slots=slots), policy, **{**tasks, **settings})


def require_same(one: Episode, other: Episode, without: tuple[str, ...] = ()) -> None:
    paths = [path for path in one.source.paths() if path not in without]
    assert paths == [path for path in other.source.paths() if path not in without]
    assert one.status == other.status == "done", one.error + other.error
    for path in paths:
        assert same_bits(one.source.read(path), other.source.read(path)), path


@pytest.mark.parametrize("slots", [1, 3])
def test_chunks_from_a_server_give_the_episodes_of_the_same_policy_in_process(slots: int) -> None:
    expected = episodes(toy_chunked(execute=3))
    with serving(service(toy_chunked())) as url:
        found = episodes(openpi(url, execute=3), slots)
    for one, other in zip(expected, found, strict=True):
        require_same(one, other, without=("policy/chunk",))
        # The server's chunk has four actions, of which the client keeps those that it executes.
        assert same_bits(one.policy["chunk"][:, :3], other.policy["chunk"])


@pytest.mark.parametrize("made", [ToySmoother, ToyGaussian, toy_chunked])
def test_asked_at_every_step_any_policy_is_the_same_on_a_server_and_forks_as_well(made: Callable[[], Policy]) -> None:
    world = ToySimulator(num_slots=3)

    def study() -> Iterator[Any]:
        roots = yield [Rollout(world.start("push-left", seed), seed, horizon=8) for seed in (1, 2)]
        forks = yield [root.rollout.branch(3, fresh=("policy",), seed=7, horizon=8) for root in roots]
        return [*roots, *forks]

    expected = run(study(), world, made())
    with serving(service(made())) as url:
        found = run(study(), world, openpi(url, execute=None))
    for one, other in zip(expected, found, strict=True):
        require_same(one, other)


def test_a_policy_on_a_server_conforms() -> None:
    with serving(service(ToyGaussian())) as url:
        assert_conforms(check_policy(lambda: openpi(url, execute=None), ToySimulator, steps=3))


FAULTS: Mapping[str, tuple[bytes | str | None, str]] = {
    "garbage": (b"\xc1\x00garbage", "9 bytes that are no openpi message"),
    "no map": (pack([1, 2]), "sent, as an answer, a list; expected a map"),
    "no actions": (pack({"action": np.zeros(2)}), r"sent 'action'; expected 'actions' \[H, 2\]"),
    "wrong size": (pack({"actions": np.zeros((3, 7))}), r"\(3, 7\); expected numbers \[H, 2\], H >= 2"),
    "too few": (pack({"actions": np.zeros((1, 2))}), r"\(1, 2\); expected numbers \[H, 2\], H >= 2"),
    "NaN": (pack({"actions": np.array([[0, 0], [0, np.nan]])}), r"not finite: action 1 is \[0.0, nan\]"),
    "text": (pack({"actions": np.array([["a", "b"]] * 2)}), "expected numbers"),
    "traceback": ("Traceback\nKeyError: 'image'", "failed as above: KeyError: 'image'"),
    "hanging up": (None, "ended the connection before it answered, twice"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_server_that_fails_for_one_episode_costs_no_other(fault: str) -> None:
    answer, told = FAULTS[fault]

    def speak(message: dict[str, Any]) -> bytes | str | None:
        return answer if "push" in message["prompt"] else GOOD

    with scripted(speak) as url:
        found = episodes(remote(url), tasks=("reach-left", "push-left"), horizon=4)
    for episode in (episode for episode in found if episode.rollout.start.task == "push-left"):
        assert (episode.status, episode.ending.blame) == ("error", "policy")
        assert re.search(told, episode.error), episode.error
    for episode in (episode for episode in found if episode.rollout.start.task == "reach-left"):
        assert episode.status == "done", episode.error
        np.testing.assert_array_equal(episode.action, np.full((4, 2), 0.25, np.float32))


def test_a_server_that_takes_too_long_is_told_from_one_that_is_gone() -> None:
    release = threading.Event()

    def speak(message: dict[str, Any]) -> bytes:
        release.wait(10)
        return GOOD

    with scripted(speak) as url:
        (found,) = episodes(remote(url, timeout=0.2), tasks=("reach-left",), episodes=1, horizon=4)
        release.set()
    assert "did not answer within 0.2 s; raise policy.timeout" in found.error


def test_an_episode_goes_on_when_its_server_is_back() -> None:
    calls = []

    def speak(message: dict[str, Any]) -> bytes | None:
        calls.append(message)
        return None if len(calls) == 2 else GOOD  # the second request finds its connection ended

    with scripted(speak) as url:
        (found,) = episodes(remote(url), tasks=("reach-left",), episodes=1, horizon=6)
    assert found.status == "done"
    assert len(calls) == 4


def test_a_server_that_dies_ends_the_episodes_and_not_the_run() -> None:
    stack = serving(service(ToyExpert()))
    url = stack.__enter__()
    policy = openpi(url, execute=None, patience=0.3)
    stack.__exit__(None, None, None)
    found = evaluate(
        ToySimulator(num_slots=2), {"remote": policy, "here": ToyExpert()}, episodes=2, tasks=("reach-left",), horizon=4
    )
    errors = [episode for episode in found if episode.rollout.policy == "remote"]
    assert {episode.status for episode in errors} == {"error"}
    assert all("no policy server answers at ws://127.0.0.1:" in episode.error for episode in errors)
    assert {episode.status for episode in found if episode.rollout.policy == "here"} == {"done"}


def test_a_server_that_is_not_there_is_said_before_anything_runs() -> None:
    with pytest.raises(ServerError, match=r"no policy server answers at ws://127.0.0.1:9 .*attempts in .*serve"):
        openpi("ws://127.0.0.1:9", patience=0.3)
    with pytest.raises(ConfigError, match="no websocket address"):
        openpi("http://127.0.0.1:9")
    with pytest.raises(ServerError, match="no policy server answers"):
        openvla("http://127.0.0.1:9", {"image": "image_top"}, patience=0.3)


def test_a_key_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(service(ToyExpert()), api_key="open sesame") as url:
        with pytest.raises(ServerError, match=r"HTTP 401; does the environment variable"):
            openpi(url, execute=None)
        monkeypatch.setenv("A_KEY", "open sesame")
        assert episodes(openpi(url, execute=None, api_key_env="A_KEY"), horizon=2)[0].status == "done"


def test_the_fingerprint_says_whose_policy_it_is_and_whether_its_noise_is_keyed() -> None:
    with serving(service(toy_chunked())) as url:
        assert "toy-chunks" in openpi(url, execute=2).fingerprint
        assert " keyed" in openpi(url, execute=2).fingerprint
        assert "toy-chunks" in openpi(url, execute=None).fingerprint
    with scripted(lambda message: GOOD) as url:
        assert UNKEYED in remote(url).fingerprint


def test_a_server_of_another_kind_gets_no_noise_key() -> None:
    heard: list[dict[str, Any]] = []

    def speak(message: dict[str, Any]) -> bytes:
        heard.append(message)
        return GOOD

    with scripted(speak) as url:
        episodes(remote(url, prompt="task"), horizon=2)
    assert {tuple(message) for message in heard} == {("state", "task")}


def test_what_does_not_fit_is_said_before_anything_runs() -> None:
    world = ToySimulator(num_slots=1)
    with serving(service(toy_chunked())) as url:
        for settings, told in (
            ({"execute": 5}, "predicts 4 actions"),
            ({"execute": 0}, "execute is a whole number"),
            ({"preset": "libro"}, "did you mean libero"),
            ({"observation": {"state": {"from": "state", "start": 1}}}, "available: from, begin"),
        ):
            with pytest.raises(ConfigError, match=told):
                openpi(url, **{"execute": 2, **settings})
        with pytest.raises(ConfigError, match=r"'state' is float64 \(4,\), not <f8 \(12,\)"):
            openpi(url, execute=2, observation={"state": {"from": "state", "end": 4}}).bind(world.spec)
        slower = WorldSpec("slow", world.observation_space, world.action_space, 0.5, world.tasks)
        with pytest.raises(ConfigError, match=r"a control step is 0.5 s, not 0.05 s"):
            openpi(url, execute=2).bind(slower)
    with serving(service(ToySmoother())) as url, pytest.raises(ConfigError, match=r"set policy.execute=null"):
        openpi(url, execute=1)
    with scripted(lambda message: GOOD) as url:
        with pytest.raises(ConfigError, match=r"does not say what it reads; choose policy.preset=libero"):
            openpi(url)
        with pytest.raises(ConfigError, match=r"set policy.action_dim"):
            openpi(url, observation=TOY)
        with pytest.raises(ConfigError, match="gives no memory back"):
            remote(url, execute=None)
        with pytest.raises(ConfigError, match="predicts actions of 7 numbers"):
            remote(url, action_dim=7).bind(world.spec)
        with pytest.raises(ConfigError, match="reads observation 'image_top'"):
            remote(url, observation={"image": "image_top"}).bind(world.spec)


def test_metadata_that_are_none_are_told() -> None:
    for greeting, told in (
        (b"\xc1", "as its metadata, 1 bytes that are no openpi message"),
        ("no GPU", "failed as above: no GPU"),
        (pack({"protocol": "simeval-serve/1"}), "sent metadata that are not those of simeval-serve/1"),
    ):
        with scripted(lambda message: GOOD, greeting) as url, pytest.raises(ServerError, match=told):
            remote(url)


def test_pictures_are_resized_as_openpis_client_does() -> None:
    rng = np.random.default_rng(0)
    for height, width, size in ((96, 96, 224), (480, 640, 224), (37, 90, 64), (64, 64, 64)):
        image = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        expected = image_tools.resize_with_pad(image, size, size)
        np.testing.assert_array_equal(resize_with_pad(image, size, size), expected)
    image = rng.integers(0, 256, (90, 50, 3), dtype=np.uint8)
    np.testing.assert_array_equal(resize_with_pad(image, 180, 320), image_tools.resize_with_pad(image, 180, 320))


def test_presets_put_observations_as_openpis_clients_do() -> None:
    rng = np.random.default_rng(0)
    picture = rng.integers(0, 256, (1, 256, 256, 3), dtype=np.uint8)
    seen = {"image_agentview": picture, "image_wrist": picture[:, :224, :224], "proprio": np.arange(8.0)[None]}
    libero = fill(read_layout(PRESETS["libero"].observation), seen, 0)
    assert {name: value.shape for name, value in libero.items()} == {
        "observation/image": (224, 224, 3),
        "observation/wrist_image": (224, 224, 3),
        "observation/state": (8,),
    }
    np.testing.assert_array_equal(libero["observation/wrist_image"], seen["image_wrist"][0])
    droid = PRESETS["droid"].observation | dict.fromkeys(("observation/exterior_image_1_left",))
    named = {"image_wrist_left": picture, "proprio": np.arange(8.0)[None]}
    message = fill(read_layout(droid), named, 0)
    assert message["observation/joint_position"].tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert message["observation/gripper_position"].tolist() == [7]
    assert "observation/exterior_image_1_left" not in message
    cameras = {f"image_{name}": picture for name in ("cam_high", "cam_low", "cam_left_wrist", "cam_right_wrist")}
    aloha = fill(read_layout(PRESETS["aloha"].observation), {**cameras, "proprio": np.zeros((1, 14))}, 0)
    assert unpack(pack(aloha))["images"]["cam_high"].shape == (3, 224, 224)


def test_openvlas_protocol_carries_an_evaluation() -> None:
    expected = episodes(ToyExpert(), horizon=6)
    with serving(service(ToyExpert(), names={"state": "image"}), "openvla") as url:
        found = episodes(openvla(url, {"image": "state"}, unnorm_key="toy", action_dim=2), horizon=6)
        (wrong,) = episodes(openvla(url, {"picture": "state"}, action_dim=2), tasks=("reach-left",), episodes=1)
    for one, other in zip(expected, found, strict=True):
        require_same(one, other, without=("policy/chunk", "policy/replanned", "policy/clipped"))
    assert "answered 'error'; its own log says why" in wrong.error


class Arm(Policy):
    """Joints follow the mean of a picture: what a RoboArena server's policy reads and gives."""

    observation_keys = ("image_left", "proprio")

    def act(self, observation: Any, instruction: Any, memory: Any, keys: Any) -> PolicyStep:
        light = observation["image_left"].mean((1, 2, 3)) / 255
        return PolicyStep((observation["proprio"][:, :8] * light[:, None]).astype(np.float32), {})


ARM = WorldSpec(
    "arm",
    gymnasium.spaces.Dict(
        {
            "image_left": gymnasium.spaces.Box(0, 255, (18, 32, 3), np.uint8),
            "proprio": gymnasium.spaces.Box(-1, 1, (14,), np.float32),
        }
    ),
    gymnasium.spaces.Box(-1, 1, (8,), np.float32),
    0.1,
    ("hold",),
)


def test_roboarenas_protocol_asks_for_what_the_policy_reads() -> None:
    names = {
        "image_left": "observation/exterior_image_0_left",
        "proprio": {
            "observation/joint_position": 7,
            "observation/gripper_position": 1,
            "observation/cartesian_position": 6,
        },
    }
    rng = np.random.default_rng(0)
    seen = {
        "image_left": rng.integers(0, 256, (2, 18, 32, 3), dtype=np.uint8),
        "proprio": rng.uniform(-1, 1, (2, 14)).astype(np.float32),
    }
    arm = PolicyService(Arm(), ARM, ({key: value[:1] for key, value in seen.items()}, ""), names)
    entries: dict[str, Any] = {
        "observation/exterior_image_0_left": "image_left",
        "observation/wrist_image_left": None,
        "observation/joint_position": {"from": "proprio", "end": 7},
        "observation/gripper_position": {"from": "proprio", "begin": 7, "end": 8},
        "observation/cartesian_position": {"from": "proprio", "begin": 8},
    }
    keys = [key(0), key(1)]
    with serving(arm, "roboarena") as url:
        policy = roboarena(url, entries, execute=1).bind(ARM)
        found = policy.act(seen, ["", ""], policy.initial_memory(2), keys)
        with pytest.raises(ConfigError, match="gives actions in 'joint_position'"):
            roboarena(url, entries, execute=1, action_space="cartesian_velocity")
        with pytest.raises(ConfigError, match=r"reads 'observation/joint_position'; say in policy.observation"):
            roboarena(url, {**entries, "observation/joint_position": None}, execute=1)
        policy = roboarena(url, entries, execute=2).bind(ARM)
        with pytest.raises(ServerError, match=r"expected numbers \[H, 8\], H = 2"):
            policy.act(seen, ["", ""], policy.initial_memory(2), keys)
    np.testing.assert_array_equal(found.action, Arm().act(seen, ["", ""], {}, keys).action)
    said = {
        "image_resolution": [18, 32],
        "needs_wrist_camera": False,
        "n_external_cameras": 1,
        "needs_stereo_camera": False,
        "needs_session_id": False,
        "action_space": "joint_position",
    }
    with serving(arm, "roboarena") as url, connect(url) as connection:
        assert unpack(connection.recv()) == said
        connection.send(pack({"endpoint": "reset", "session_id": "a"}))
        assert connection.recv() == "reset successful"
        connection.send(pack({"prompt": ""}))
        assert "'endpoint' is 'infer' or 'reset'" in connection.recv()
    remembering = scripted(lambda message: GOOD, pack(said | {"needs_session_id": True}))
    with remembering as url, pytest.raises(UnsupportedError, match="cannot be forked"):
        roboarena(url, entries, execute=1)
    unnamed = PolicyService(Arm(), ARM, ({key: value[:1] for key, value in seen.items()}, ""))
    with pytest.raises(ConfigError, match="name in RoboArena"), serving(unnamed, "roboarena"):
        pass
