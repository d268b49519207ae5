"""What hosts and workers say to one another: messages, arrays in shared memory, deadlines and versions."""

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator

import gymnasium
import numpy as np
import pytest

import simeval
from simeval import errors
from simeval.errors import ActionError, HostError, LostError, MissingPackageError, UnsupportedError
from simeval.host import process
from simeval.host.description import space_from_plain, space_to_plain
from simeval.host.faults import described, rebuilt
from simeval.host.interpreter import Interpreter
from simeval.host.process import Lost, WorkerProcess
from simeval.host.segment import Segment, new_segment
from simeval.host.wire import Channel, Closed, Overdue

Ends = tuple[Channel, Channel]
HERE = Interpreter.of(None)
WORLD = {"config": {"_target_": "hosted_worlds.Counter", "num_slots": 2}, "what": "world 'counter'"}


@pytest.fixture
def ends() -> Iterator[Ends]:
    """Host's and worker's end of a channel, both in this process."""
    here, there = socket.socketpair()
    one, two = new_segment(), new_segment()
    channels = Channel(here, one, two), Channel(there, os.dup(two), os.dup(one))
    yield channels
    for channel in channels:
        channel.close()


def test_messages_and_arrays_arrive_as_they_were_sent(ends: Ends) -> None:
    host, worker = ends
    rng = np.random.default_rng(0)
    for size in (1, 300, 2, 0, 300):
        arrays = {
            "image": rng.integers(0, 255, (size, 7, 7, 3), dtype=np.uint8),
            "state": rng.standard_normal((size, 3))[:, ::-1],
            "flag": rng.random(size) > 0.5,
            "name": np.array(["left", "right"]),
        }
        host.send(size, ["step", {"wide": 2**70, "pair": (1, 2.5), "raw": b"\0"}], arrays)
        number, message, seen = worker.receive()
        assert (number, message) == (size, ["step", {"wide": 2**70, "pair": (1, 2.5), "raw": b"\0"}])
        assert list(seen) == list(arrays)
        for name, array in arrays.items():
            assert seen[name].dtype == array.dtype
            np.testing.assert_array_equal(seen[name], array)
        worker.send(size, None)
        assert host.receive() == (size, None, {})


def test_images_do_not_go_through_the_socket(ends: Ends) -> None:
    host, worker = ends
    image = np.ones((64, 512, 512, 3), np.uint8)
    host.send(1, "look", {"image": image})  # 50 MB, which no socket takes while nobody reads
    assert worker.receive()[2]["image"].sum() == image.size


@pytest.mark.parametrize("array", [np.array([{}]), np.zeros(2, [("a", "f4"), ("b", "i4")])])
def test_what_is_no_plain_array_is_refused(array: np.ndarray) -> None:
    with pytest.raises(TypeError, match="numbers, booleans and text"):
        Segment(new_segment()).write({"odd": array})


def test_a_side_that_says_nothing_is_overdue_and_one_that_has_gone_is_closed(ends: Ends) -> None:
    host, worker = ends
    with pytest.raises(Overdue):
        host.receive(time.monotonic() + 0.05)
    worker.send(1, "late, and there")
    assert host.receive(time.monotonic() - 1)[1] == "late, and there"
    with pytest.raises(Overdue):
        host.send(1, b"\0" * 10**8, until=time.monotonic() + 0.05)
    worker.close()
    for call in (lambda: host.send(2, "anybody?"), lambda: host.receive()):
        with pytest.raises(Closed):
            call()


def test_a_message_that_arrives_in_pieces_is_whole(ends: Ends) -> None:
    host, worker = ends
    large = os.urandom(10**7)
    sender = threading.Thread(target=host.send, args=(1, large))
    sender.start()
    assert worker.receive(time.monotonic() + 30)[1] == large
    sender.join()


def test_another_protocol_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "PROTOCOL", "simeval-host/0")
    worker = WorkerProcess("world", WORLD, "world 'counter'", HERE, 60)
    with pytest.raises(
        HostError, match=r"the host speaks simeval-host/0, and the simeval that .* speaks simeval-host/1"
    ):
        worker.ready()
    worker.close()


def test_an_answer_to_an_interrupted_question_is_not_taken_for_that_to_the_next() -> None:
    worker = WorkerProcess("world", WORLD, "world 'counter'", HERE, 60)
    try:
        assert worker.ready()["name"] == "counter"
        worker.send("start", {"task": "count", "seed": 1})
        assert worker.call("horizon", {"task": "count"})[0] == 8
        with pytest.raises(errors.ConfigError, match="unknown task"):
            worker.call("horizon", {"task": "no-such"})
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(Lost, match=rf"world 'counter': process {worker.pid} was ended by SIGKILL in 'horizon'"):
            worker.call("horizon", {"task": "count"})
        with pytest.raises(Lost, match="ended by SIGKILL"):
            worker.send("horizon", {"task": "count"})
    finally:
        worker.close()


@pytest.mark.parametrize(
    "error",
    [
        ActionError("slot 2, step 3: too large"),
        MissingPackageError("world 'x' needs h5py, which", "h5py"),
        LostError("gone", [1]),
        IndexError("slots must be distinct"),
        KeyError("state"),
    ],
)
def test_errors_keep_their_class_and_text(error: Exception) -> None:
    there = rebuilt(described(error))
    assert type(there) is type(error)
    assert str(there).strip("'\"") == str(error).strip("'\"")
    assert "in the worker process" in there.__notes__[0]


def test_an_error_of_no_known_class_is_told_with_its_name() -> None:
    strange = type("Strange", (Exception,), {"__module__": "some.suite"})("what happened")
    there = rebuilt(described(strange))
    assert (type(there), str(there)) == (RuntimeError, "some.suite.Strange: what happened")


def test_spaces_come_back_exactly() -> None:
    space = gymnasium.spaces.Dict(
        {
            "state": gymnasium.spaces.Box(np.float64([-np.inf, -0.1]), np.float64([0.3, np.inf]), dtype=np.float64),
            "image": gymnasium.spaces.Box(0, 255, (4, 4, 3), np.uint8),
            "which": gymnasium.spaces.Discrete(3, start=-1),
            "many": gymnasium.spaces.MultiDiscrete([2, 5]),
            "bits": gymnasium.spaces.MultiBinary([2, 3]),
            "both": gymnasium.spaces.Tuple([gymnasium.spaces.Box(-1, 1, (2,), np.float32)]),
        }
    )
    assert space_from_plain(space_to_plain(space)) == space
    with pytest.raises(UnsupportedError, match="Text"):
        space_to_plain(gymnasium.spaces.Text(3))


def test_the_public_face_has_what_it_lists() -> None:
    assert all(getattr(simeval, name) for name in simeval.__all__)
    assert set(simeval.__all__) <= set(dir(simeval))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = simeval.nothing
