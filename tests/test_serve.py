"""The policy server: openpi's own client and others against it, batches, errors, keys, pings, the command."""

import json
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import json_numpy
import numpy as np
import pytest
from openpi_client.websocket_client_policy import WebsocketClientPolicy
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from simeval import Run
from simeval.cli import main
from simeval.errors import ConfigError, UnsupportedError
from simeval.serve.batching import Batcher, Stopped
from simeval.serve.messages import MessageError, from_json, key_text, pack, read_key, to_json, unpack
from simeval.serve.service import PolicyService
from simeval.serve.serving import serving
from simeval.testing.toy_policies import ToyGaussian, ToySmoother
from simeval.testing.toys import ToySimulator
from tests.serving_policies import Gate, key, toy_chunked

pytestmark = pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager")  # openpi's client

STATE = np.linspace(-0.4, 0.4, 12)
WORDS = "move to the left zone"


def service(policy: Any, **settings: Any) -> PolicyService:
    return PolicyService.of(policy, ToySimulator(num_slots=1), **settings)


def observation(first: float = 0.1, **more: Any) -> dict[str, Any]:
    state = STATE.copy()
    state[0] = first
    return {"state": state, "prompt": WORDS, **more}


def client(address: str, api_key: str | None = None) -> WebsocketClientPolicy:
    return WebsocketClientPolicy(address, api_key=api_key)


@pytest.fixture
def gate() -> Iterator[Gate]:
    policy = Gate()
    yield policy
    policy.open.set()


def test_openpis_own_client_gets_the_chunk_that_the_policy_predicts() -> None:
    served = service(toy_chunked())
    with serving(served) as address:
        openpi = client(address)
        result = openpi.infer(observation(noise_key=key_text(key(7, 3))))
        again = openpi.infer(observation(noise_key=key_text(key(7, 3))))
    seen = {"state": observation()["state"][None]}
    expected = served.policy.act(seen, [WORDS], served.policy.initial_memory(1), [key(7, 3)])
    np.testing.assert_array_equal(result["actions"], np.asarray(expected.chunk)[0])
    np.testing.assert_array_equal(again["actions"], result["actions"])
    assert result["server_timing"].keys() == {"infer_ms"}
    assert again["server_timing"].keys() == {"infer_ms", "prev_total_ms"}
    assert openpi.get_server_metadata()["horizon"] == 4


def test_what_openpis_client_is_told_of_a_mistake_names_what_the_policy_reads() -> None:
    with serving(service(toy_chunked())) as address:
        for wrong, told in (
            (
                {"prompt": WORDS, "states": STATE},
                r"lacks 'state'.*reads 'state' float64 \(12,\).*received: prompt, states",
            ),
            (observation() | {"state": STATE[:5]}, r"'state' is float64 \(5,\); expected 'state' float64 \(12,\)"),
            (observation() | {"state": [[1], [1, 2]]}, "'state' is no array"),
            (observation() | {"prompt": 3}, "'prompt' is text"),
            (observation(noise_key="soon"), "noise_key is text as in '17:policy:42'"),
            (observation(memory={}), "memory has .*expected the parts"),
        ):
            with pytest.raises(RuntimeError, match=f"(?s){told}"):
                client(address).infer(wrong)
        assert client(address).infer(observation())["actions"].shape == (4, 2)


def test_a_policys_traceback_goes_to_the_client_concerned_and_to_no_other(gate: Gate) -> None:
    with serving(service(gate), wait_s=0.2) as address, ThreadPoolExecutor(3) as pool:
        clients = [client(address) for _ in range(3)]
        futures = [pool.submit(one.infer, observation(first)) for one, first in zip(clients, (1, 13, 2), strict=True)]
        assert futures[0].result()["actions"].shape == futures[2].result()["actions"].shape == (1, 2)
        with pytest.raises(RuntimeError, match=r"(?s)Traceback.*ArithmeticError: thirteen"):
            futures[1].result()
        assert clients[0].infer(observation())["actions"].shape == (1, 2)


def test_pings_are_answered_while_the_policy_computes(gate: Gate) -> None:
    with serving(service(gate)) as address, connect(address) as busy, connect(address) as idle:
        gate.open.clear()
        gate.entered.clear()
        busy.recv()
        busy.send(pack(observation()))
        assert gate.entered.wait(10)
        assert idle.ping().wait(10)
        assert busy.ping().wait(10)
        with pytest.raises(TimeoutError):
            busy.recv(timeout=0)
        gate.open.set()
        assert unpack(busy.recv(timeout=10))["actions"].shape == (1, 2)


def test_what_comes_while_the_policy_computes_is_answered_by_one_call(gate: Gate) -> None:
    with serving(service(gate), wait_s=0.3) as address, ExitStack() as stack:
        clients = [stack.enter_context(connect(address)) for _ in range(4)]
        for each in clients:
            each.recv()
        gate.open.clear()
        gate.entered.clear()
        gate.rows.clear()
        clients[0].send(pack(observation()))
        assert gate.entered.wait(10)
        for each in clients[1:]:
            each.send(pack(observation()))
            assert each.ping().wait(10)  # what was sent before has arrived
        gate.open.set()
        for each in clients:
            assert unpack(each.recv(timeout=10))["actions"].shape == (1, 2)
    assert gate.rows == [1, 3]


def test_an_answer_does_not_depend_on_who_shares_the_call() -> None:
    served = service(toy_chunked())
    rows = [observation(0.05 * row, noise_key=key_text(key(row))) for row in range(5)]
    with serving(served, wait_s=0.05) as address, ThreadPoolExecutor(5) as pool:
        alone = [client(address).infer(row)["actions"] for row in rows]
        clients = [client(address) for _ in rows]
        shared = [future.result() for future in [pool.submit(c.infer, r) for c, r in zip(clients, rows, strict=True)]]
    for one, other in zip(alone, shared, strict=True):
        np.testing.assert_array_equal(one, other["actions"])


def test_a_policy_that_remembers_does_so_per_connection_until_a_reset() -> None:
    served = service(ToySmoother())
    memory = served.policy.initial_memory(1)
    expected = []
    for _ in range(3):
        step = served.policy.act({"state": observation()["state"][None]}, [WORDS], memory, [key(0)])
        expected.append(np.asarray(step.action))
        memory = step.memory
    with serving(served) as address:
        one, other = client(address), client(address)
        for action in expected:
            np.testing.assert_array_equal(one.infer(observation())["actions"], action)
        np.testing.assert_array_equal(other.infer(observation())["actions"], expected[0])
        assert one.infer({"endpoint": "reset"}) == {"reset": True}
        np.testing.assert_array_equal(one.infer(observation())["actions"], expected[0])


def test_without_a_key_noise_is_a_function_of_the_servers_seed_the_connection_and_its_step() -> None:
    def drawn(seed: int) -> list[Any]:
        with serving(service(ToyGaussian(), seed=seed)) as address:
            clients = [client(address) for _ in range(2)]
            return [one.infer(observation())["actions"] for one in clients for _ in range(2)]

    first, again, other = drawn(1), drawn(1), drawn(2)
    np.testing.assert_array_equal(first, again)
    assert len({action.tobytes() for action in (*first, *other)}) == 8


def test_a_key_is_asked_for_by_header_and_health_is_told_to_everybody() -> None:
    with serving(service(toy_chunked()), api_key="open sesame") as address:
        assert client(address, "open sesame").infer(observation())["actions"].shape == (4, 2)
        for wrong in (None, "sesame"):
            with pytest.raises(Exception, match="401"):
                client(address, wrong)
        with urllib.request.urlopen(address.replace("ws", "http") + "/healthz") as response:
            assert (response.status, response.read()) == (200, b"OK\n")


def test_a_server_that_stops_closes_its_connections_and_finishes_what_it_computes(gate: Gate) -> None:
    with ExitStack() as server:
        address = server.enter_context(serving(service(gate)))
        with connect(address) as connection:
            connection.recv()
            gate.open.clear()
            gate.entered.clear()
            connection.send(pack(observation()))
            assert gate.entered.wait(10)
            threading.Timer(0.2, gate.open.set).start()
            server.close()
            with pytest.raises(ConnectionClosed) as closed:
                connection.recv(timeout=10)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1001
    with pytest.raises(OSError, match="refused"), connect(address):
        pass


def test_a_batcher_that_was_closed_takes_nothing_and_fails_what_waits(gate: Gate) -> None:
    served = service(gate)
    batcher = Batcher(served.answer, max_batch=1)
    gate.open.clear()
    gate.entered.clear()
    request = served.read(observation(), served.session())
    computing = batcher.submit(request)
    assert gate.entered.wait(10)
    waiting = batcher.submit(request)
    threading.Timer(0.1, gate.open.set).start()
    batcher.close()
    assert computing.result()
    with pytest.raises(Stopped):
        waiting.result()
    with pytest.raises(Stopped):
        batcher.submit(request)


def test_observations_go_by_the_names_that_the_server_is_given() -> None:
    parts = {"observation/disc": 4, "observation/rest": 8}
    served = service(toy_chunked(), names={"state": parts})
    seen = observation()["state"]
    with serving(served) as address:
        message = {
            "observation/disc": seen[:4],
            "observation/rest": seen[4:],
            "prompt": WORDS,
            "noise_key": "1:policy:0",
        }
        named = client(address).infer(message)["actions"]
    with serving(service(toy_chunked())) as address:
        np.testing.assert_array_equal(named, client(address).infer(observation(noise_key="1:policy:0"))["actions"])
    with pytest.raises(ConfigError, match="must add up"):
        service(toy_chunked(), names={"state": {"a": 4, "b": 4}})
    with pytest.raises(ConfigError, match="did you mean state"):
        service(toy_chunked(), names={"stat": "a"})


def test_openvlas_protocol_gives_one_action_and_the_word_error() -> None:
    served = service(toy_chunked(), names={"state": "image"})
    with serving(served, "openvla") as address:

        def post(payload: Any, path: str = "/act") -> Any:
            request = urllib.request.Request(address + path, payload.encode(), {"Content-Type": "application/json"})
            with urllib.request.urlopen(request) as response:
                return json_numpy.loads(response.read())

        asked = {"image": observation()["state"], "instruction": WORDS, "unnorm_key": None, "noise_key": "1:policy:0"}
        action = post(json_numpy.dumps(asked))
        encoded = post(json.dumps({"encoded": json_numpy.dumps(asked)}))
        assert post(json_numpy.dumps({"image": STATE[:3], "instruction": WORDS})) == "error"
        assert post("no json") == "error"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            post("{}", "/react")
        with urllib.request.urlopen(address + "/healthz") as response:
            assert response.read() == b"OK\n"
    seen = {"state": observation()["state"][None]}
    expected = served.policy.act(seen, [WORDS], served.policy.initial_memory(1), [key(1)])
    np.testing.assert_array_equal(action, np.asarray(expected.chunk)[0, 0])
    np.testing.assert_array_equal(json_numpy.loads(encoded), action)
    with (
        pytest.raises(UnsupportedError, match="no episodes"),
        serving(service(ToySmoother(), names={"state": "image"}), "openvla"),
    ):
        pass


def test_arrays_survive_both_encodings_and_objects_enter_neither() -> None:
    values = {
        "image": np.arange(12, dtype=np.uint8).reshape(2, 2, 3)[:, ::-1],
        "scalar": np.float32(0.1),
        "none": np.zeros((0, 3)),
        "point": np.array(3),
        "flag": np.bool_(True),
    }
    for back in (unpack(pack(values)), from_json(to_json(values))):
        for name, value in values.items():
            np.testing.assert_array_equal(back[name], value)
            assert np.asarray(back[name]).dtype == np.asarray(value).dtype
    assert json_numpy.loads(to_json(values))["image"].tolist() == values["image"].tolist()
    for wrong in (np.array([object()]), np.zeros(1, complex), np.zeros(1, [("a", int)]), {1, 2}):
        with pytest.raises(MessageError):
            pack(wrong)
        with pytest.raises(MessageError):
            to_json(wrong)
    evil = {b"__ndarray__": True, b"data": b"\0" * 8, b"dtype": "|O", b"shape": [1]}
    for data in (pack(evil), b"\xc1", b"\x81\xa1", pack({b"__ndarray__": True})):
        with pytest.raises(MessageError, match="no openpi message"):
            unpack(data)
    assert read_key(key_text(key(-(2**70), 5))) == key(-(2**70), 5)


def test_a_configuration_that_cannot_be_served_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, told in (
        (["serve"], "no policy is configured"),
        (["serve", "policy=uniform", "serve.dialect=grpc"], "available: openpi, roboarena, openvla"),
        (["serve", "policy=uniform,constant"], "a server has one policy"),
        (["serve", "policy=uniform", "serve.port=-1"], "serve.port is a whole number"),
    ):
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert told in error
        assert error.count("\n") == 1


@pytest.mark.slow
def test_the_command_serves_a_run_of_another_process_until_it_is_told_to_stop(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "simeval", "serve", "policy=expert", "world.task=reach", "serve.port=0"]
    study = ["world.task=reach", "world.num_slots=2", "protocol.episodes=2", "report.videos=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            address = re.search(r"ws://\S+(?=:)", process.stdout.readline())
            assert address is not None
            assert client(address.group()).get_server_metadata()["horizon"] == 0
            served = ["policy=openpi", f"policy.url={address.group()}", "policy.execute=null"]
            assert main(["run", *study, *served, f"run.dir={tmp_path / 'served'}"]) == 0
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
            assert "stopping" in process.stdout.read()
        finally:
            process.kill()
    assert main(["run", *study, "policy=expert", f"run.dir={tmp_path / 'here'}"]) == 0
    here, there = ({e.rollout.start.seed: e for e in Run(tmp_path / name)} for name in ("here", "served"))
    assert here.keys() == there.keys()
    for seed, episode in here.items():
        np.testing.assert_array_equal(episode.action, there[seed].action)
