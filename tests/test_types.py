"""The plain data: identities that hold across processes, hashes that see every field, round trips that lose nothing."""

import dataclasses
import json
import pickle
import subprocess
import sys
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simeval.codec import pack, unpack
from simeval.errors import ConfigError, SnapshotError
from simeval.noise import Key
from simeval.types import STREAMS, Perturbation, Rollout, Snapshot, SnapshotRef, Start, canonical_json, content_hash

START = Start("push-left", "push it left", seed=4)
KICK = Perturbation("actuation.replace", 0.5, {"value": [0.0, 1.0], "why": {"b": 1, "a": 2}}, from_step=3, to_step=9)
ROLLOUT = Rollout(START, seed=7, horizon=50, perturbations=(KICK,), snapshot_steps=(0, 10))
GOLDEN_ID = "00a6a9e129c0a3185012"


def test_the_id_of_a_rollout_is_what_it_always_was():
    assert ROLLOUT.id == GOLDEN_ID


def test_the_id_of_a_rollout_is_the_same_in_another_process():
    program = (
        "import sys, json; from simeval.types import Rollout; print(Rollout.from_json(json.loads(sys.argv[1])).id)"
    )
    text = json.dumps(ROLLOUT.to_json())
    done = subprocess.run([sys.executable, "-c", program, text], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ROLLOUT.id


CHANGES: dict[str, Any] = {
    "start": dataclasses.replace(START, seed=5),
    "seed": 8,
    "horizon": 51,
    "world": "other",
    "policy": "other",
    "perturbations": (),
    "parent": "0" * 20,
    "branch_step": 4,
    "streams": (("policy", 9),),
    "snapshot_steps": (0,),
    "stop_on_success": False,
}


@pytest.mark.parametrize("name", [f.name for f in dataclasses.fields(Rollout) if f.init])
def test_every_field_of_a_rollout_is_in_its_id(name):
    base = dataclasses.replace(ROLLOUT, parent="f" * 20, branch_step=3)
    assert dataclasses.replace(base, **{name: CHANGES[name]}).id != base.id


@pytest.mark.parametrize(
    "change",
    [
        {"task": "push-right"},
        {"instruction": "push it"},
        {"seed": None},
        {"index": 0},
        {"snapshot": SnapshotRef("runs/x", "a", 3)},
        {"perturbations": (KICK,)},
    ],
)
def test_every_field_of_a_start_is_in_the_id(change):
    assert {*change} <= {f.name for f in dataclasses.fields(Start)}
    assert dataclasses.replace(ROLLOUT, start=dataclasses.replace(START, **change)).id != ROLLOUT.id


@pytest.mark.parametrize(
    "change", [{"axis": "identity"}, {"level": 1.0}, {"params": {}}, {"from_step": 4}, {"to_step": None}]
)
def test_every_field_of_a_perturbation_is_in_the_id_and_in_its_hash(change):
    assert {*change} <= {f.name for f in dataclasses.fields(Perturbation)}
    other = dataclasses.replace(KICK, **change)
    assert dataclasses.replace(ROLLOUT, perturbations=(other,)).id != ROLLOUT.id
    assert hash(other) != hash(KICK)
    assert other != KICK


def test_equal_data_has_one_hash_whatever_the_order_of_its_keys():
    assert content_hash({"a": 1, "b": [1, 2]}) == content_hash({"b": [1, 2], "a": 1})
    assert content_hash([1, 2]) != content_hash([2, 1])
    assert canonical_json({"b": "é", "a": 1.5}) == '{"a":1.5,"b":"\\u00e9"}'
    with pytest.raises(ValueError, match="JSON"):
        canonical_json(float("nan"))


@pytest.mark.parametrize(
    "start",
    [
        START,
        Start("a"),
        Start("a", index=0),
        Start("a", "b", seed=0, index=3, snapshot=SnapshotRef("runs/x", "id", 5), perturbations=(KICK,)),
    ],
)
def test_data_survives_json_and_pickle(start):
    rollout = dataclasses.replace(ROLLOUT, start=start, parent="0" * 20, branch_step=2, streams=(("policy", 3),))
    text = json.dumps(rollout.to_json())
    for again in (Rollout.from_json(json.loads(text)), pickle.loads(pickle.dumps(rollout))):
        assert again == rollout
        assert again.id == rollout.id
        assert hash(again) == hash(rollout)
    assert Start.from_json(json.loads(json.dumps(start.to_json()))) == start


def test_the_parameters_of_a_perturbation_cannot_be_changed_from_outside():
    params: dict[str, Any] = {"value": [0.0, 1.0]}
    perturbation = Perturbation("actuation.replace", params=params)
    params["value"][0] = 5.0
    assert perturbation.params["value"] == [0.0, 1.0]
    with pytest.raises(TypeError):
        perturbation.params["value"] = []  # type: ignore[index]


def test_a_perturbation_holds_from_its_first_step_until_before_its_last():
    assert [KICK.holds(step) for step in (2, 3, 8, 9)] == [False, True, True, False]
    assert Perturbation("identity").holds(10**9)


def test_a_branch_shares_every_stream_but_those_that_are_fresh():
    child = ROLLOUT.branch(5, fresh=["policy"], seed=1)
    assert child.parent == ROLLOUT.id
    assert child.key("world") == ROLLOUT.key("world")
    assert child.key("policy") != ROLLOUT.key("policy")
    assert ROLLOUT.branch(5, fresh=["policy"], seed=2).key("policy") != child.key("policy")
    assert ROLLOUT.branch(5).key("policy") == ROLLOUT.key("policy")
    grandchild = child.branch(8)
    assert grandchild.key("policy") == child.key("policy")
    both = ROLLOUT.branch(5, fresh=["policy", "world"], seed=1)
    assert both.key("policy") != both.key("world")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ROLLOUT.branch(5, fresh=["policy"]), "seed"),
        (lambda: ROLLOUT.branch(50), "horizon"),
        (lambda: ROLLOUT.branch(-1), "branch_step"),
        (lambda: Rollout(START, seed=0, horizon=0), "horizon"),
        (lambda: Rollout(START, seed=0, horizon=5, branch_step=2), "without a parent"),
    ],
)
def test_a_rollout_that_makes_no_sense_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("fresh", "message"),
    [
        ("policy", r"pass \['policy'\]"),
        (["Policy"], "did you mean policy"),
        (["policy", "start"], "available: world, policy, perturbation"),
    ],
)
def test_a_branch_is_never_fresh_in_name_only(fresh, message):
    with pytest.raises(ConfigError, match=message):
        ROLLOUT.branch(5, fresh=fresh, seed=1)


def test_every_stream_can_be_fresh():
    child = ROLLOUT.branch(5, fresh=STREAMS, seed=1)
    assert all(child.key(stream) != ROLLOUT.key(stream) for stream in STREAMS)


STATE = {
    "qpos": np.arange(6, dtype=np.float64).reshape(2, 3) / 7,
    "flags": np.array([True, False]),
    "image": np.arange(12, dtype=np.uint8).reshape(2, 2, 3),
    "empty": np.zeros((0, 3), dtype=np.float32),
    "scalar": np.float32(0.1),
    "nested": {"pair": (1, 2.5), "list": [None, "text", b"bytes", True], "wide": 2**80},
    "special": np.array([np.nan, np.inf, -0.0]),
    "names": np.array(["a", "längere"]),
}


def same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray | np.generic):
        return type(a) is type(b) and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def test_a_snapshot_survives_bytes_bit_for_bit():
    again = Snapshot.from_bytes(Snapshot("world/1", STATE).to_bytes())
    assert again.world == "world/1"
    assert same(STATE, again.state)
    assert again.to_bytes() == Snapshot("world/1", STATE).to_bytes()


def test_what_comes_out_of_bytes_can_be_written_to():
    again = Snapshot.from_bytes(Snapshot("world/1", STATE).to_bytes())
    again.state["qpos"][0, 0] = 5.0


def test_arrays_that_are_not_contiguous_keep_their_values():
    array = np.arange(24).reshape(4, 6)[::2, ::-3]
    np.testing.assert_array_equal(unpack(pack(array)), array)


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"foreign",
        pack({"format": "other"}),
        Snapshot("w", {"a": 1}).to_bytes()[:-3],
        pack({"format": "simeval-snapshot/1"}),
        pack({"format": "simeval-snapshot/1", "world": "w"}),
        pack({"format": "simeval-snapshot/1", "world": 3, "state": {}}),
        pack({"format": "simeval-snapshot/1", "world": "w", "state": [1]}),
        pack({"format": "simeval-snapshot/1", "world": "w", "state": {1: 2}}),
    ],
)
def test_damaged_or_foreign_bytes_are_refused(damage):
    with pytest.raises(SnapshotError):
        Snapshot.from_bytes(damage)


@pytest.mark.parametrize("dtype", ["f8,i4", "(2,)f8", ",", "O", "V8", "M8[s]", "S0", "f8 ", [["a", "f8"]], None, 7])
def test_a_dtype_that_was_never_written_is_refused(dtype):
    head = msgpack.packb([dtype, [1], bytes(8)])
    with pytest.raises(SnapshotError, match="damaged or foreign"):
        unpack(msgpack.packb(msgpack.ExtType(1, head)))


def test_whatever_happens_to_the_bytes_only_a_snapshot_error_comes_of_it():
    whole = Snapshot("world/1", STATE).to_bytes()
    refused = 0
    for index in range(8000):
        draws = Key(0).stream("mutations").event(index)
        data = bytearray(whole)
        for _ in range(draws.integers(1, 4)):
            data[draws.integers(len(data))] = draws.integers(256)
        if index % 4 == 0:
            begin = draws.integers(len(data))
            del data[begin : begin + draws.integers(1, 9)]
        try:
            Snapshot.from_bytes(bytes(data))
        except SnapshotError:
            refused += 1
    assert 4000 < refused < 8000


@pytest.mark.parametrize(
    "value",
    [
        object(),
        {1, 2},
        np.array([object()]),
        lambda: 0,
        np.ma.array([1.0, 2.0], mask=[True, False]),
        np.rec.array([(1, 2.0)]),
        np.zeros(2, dtype="f8,i4"),
        np.zeros(2, dtype="f8,i4")[0],
        np.datetime64("2020-01-01"),
        np.array(["2020-01-01"], dtype="M8[D]"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_only_plain_data_is_encoded(value):
    with pytest.raises(TypeError, match="cannot encode"):
        pack({"value": [(value,)]})


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3) | st.tuples(inner)
    ),
    max_leaves=8,
)


@given(plain)
@settings(max_examples=60, deadline=None)
def test_any_plain_data_survives_bytes(value):
    assert same(value, unpack(pack(value)))
