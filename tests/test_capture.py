import json
import subprocess
import sys
import types
from collections import OrderedDict, deque, namedtuple
from enum import Enum
from pathlib import Path

import mujoco
import numpy as np
import pytest

from envs.capture import Capture
from envs.object_capture import ObjectCapture
from simeval.codec import pack, unpack
from simeval.errors import SnapshotError

MODEL = """
<mujoco>
  <option timestep="0.004"/>
  <worldbody>
    <geom type="plane" size="2 2 .1"/>
    <body name="box" pos="0 0 .3"><freejoint/><geom name="box" type="box" size=".1 .1 .1"/></body>
    <body name="ball" pos=".05 0 .7"><freejoint/><geom type="sphere" size=".1"/></body>
    <body name="arm" pos=".5 0 .5"><joint name="hinge" axis="0 1 0"/>
      <geom type="capsule" fromto="0 0 0 .3 0 0" size=".04"/><site name="tip" pos=".3 0 0"/></body>
  </worldbody>
  <actuator><motor joint="hinge" gear="3"/></actuator>
  <sensor><framepos objtype="site" objname="tip"/></sensor>
</mujoco>
"""


class Mode(Enum):
    REACH = 1
    GRASP = 2


Pair = namedtuple("Pair", "left right")


class Filter:
    def __init__(self):
        self.last = np.zeros(3)
        self.current = np.zeros(3)

    def push(self, value):
        self.last = self.current
        self.current = np.array(value)


class Arm:
    """A simulator's object with every kind of state that is met in practice."""

    def __init__(self, data=None, seed=None):
        self.count = 0
        self.gain = 0.0
        self.goal = np.zeros(3)
        self.also_goal = self.goal
        self.filter = Filter()
        self.mode = Mode.REACH
        self.pair = Pair(np.zeros(2), 1)
        self.history = deque(maxlen=3)
        self.cache = OrderedDict(a=1, b=2)
        self.visited = {"home"}
        self.rng = np.random.default_rng(seed)
        self.grippers = {"left": Filter(), "right": Filter()}
        self.active = self.grippers["left"]
        self.position = None if data is None else data.xpos[1]
        self.on_step = self.advance

    def advance(self, data=None):
        self.count += 1
        self.gain = -0.0
        self.goal[...] = self.rng.standard_normal(3)
        self.filter.push(self.goal * self.count)
        self.mode = Mode.GRASP
        self.pair = Pair(self.filter.current[:2], self.count)
        self.history.append(self.count)
        self.cache = OrderedDict(b=self.filter.last, a=self.filter.last)
        self.cache.move_to_end("b")
        self.visited.add(f"place {self.count}")
        self.active = self.grippers["right"]
        self.transposed = np.asfortranarray(self.rng.standard_normal((2, 3)))
        if data is not None:
            self.position = data.xpos[2]

    def renew(self):
        """What a reset does: its parts are built anew."""
        self.filter = Filter()
        self.goal = np.ones(3)
        self.also_goal = self.goal
        self.rng = np.random.default_rng(7)


def capture_of(arm, **kwargs):
    return ObjectCapture({"arm": arm}, (__name__,), **kwargs)


def advanced(arm, steps):
    for _ in range(steps):
        arm.advance()
    return arm


def through_bytes(state):
    return unpack(pack(state))


def described(arm):
    filtered = [arm.goal, arm.filter.last, arm.filter.current, arm.pair.left]
    plain = [arm.count, arm.gain, arm.mode.name, arm.pair.right, list(arm.history), sorted(arm.visited)]
    return pack([filtered, plain, list(arm.cache.items()), arm.rng.standard_normal(2)])


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_every_kind_of_attribute_comes_back_in_another_object_built_alike(steps):
    first, second = Arm(seed=1), Arm(seed=1)
    captures = capture_of(first), capture_of(second)
    advanced(first, steps)
    advanced(second, 3)
    captures[1].load(through_bytes(captures[0].save()))
    assert described(first) == described(second)
    assert described(advanced(first, 3)) == described(advanced(second, 3))


def test_a_saved_state_is_what_loading_it_and_saving_again_gives():
    arm = Arm(seed=1)
    capture = capture_of(arm)
    arm.renew()
    state = capture.save() if advanced(arm, 2) else None
    advanced(arm, 3)
    capture.load(state)
    assert pack(capture.save()) == pack(state)


def test_a_state_is_a_value_that_later_steps_and_loads_leave_alone():
    arm = Arm(seed=1)
    capture = capture_of(arm)
    state = capture.save() if advanced(arm, 2) else None
    before = pack(state)
    advanced(arm, 2)
    capture.load(state)
    advanced(arm, 2)
    assert pack(state) == before


def test_an_unchanged_object_has_nothing_to_save():
    state = capture_of(Arm(seed=1)).save()
    assert state["nodes"] == []
    assert state["new"] == []


def test_shared_arrays_stay_shared_and_separate_ones_separate():
    arm = Arm(seed=1)
    capture = capture_of(arm)
    advanced(arm, 1)
    arm.cache["a"] = arm.goal
    state = capture.save()
    arm.also_goal = arm.goal.copy()
    arm.cache = arm.cache.copy()
    capture.load(state)
    assert arm.also_goal is arm.goal
    assert arm.cache["a"] is arm.goal
    assert arm.filter.current is not arm.filter.last


def test_settling_puts_the_objects_of_the_baseline_back_with_the_content_of_those_that_replaced_them():
    settled, left = Arm(seed=1), Arm(seed=1)
    capture = capture_of(settled)
    known = settled.filter, settled.filter.last, settled.goal, settled.rng
    for arm in (settled, left):
        arm.renew()
    capture.settle()
    assert all(now is then for now, then in zip(known, _parts(settled), strict=True))
    assert settled.also_goal is settled.goal
    assert described(advanced(settled, 2)) == described(advanced(left, 2))


def _parts(arm):
    return arm.filter, arm.filter.last, arm.goal, arm.rng


def test_settling_joins_nothing_that_a_replacement_has_parted():
    arm = Arm(seed=1)
    capture = capture_of(arm)
    arm.goal = np.ones(3)
    capture.settle()
    arm.goal[0] = 5.0
    assert arm.also_goal.tolist() == [0, 0, 0]
    assert arm.goal.tolist() == [5, 1, 1]


def test_after_settling_a_part_that_was_renewed_and_then_moves_is_still_part_of_the_state():
    first, second = Arm(seed=1), Arm(seed=1)
    captures = capture_of(first), capture_of(second)
    first.renew()
    captures[0].settle()
    first.filter.push([1, 2, 3])
    first.active = first.grippers["right"]
    captures[1].load(through_bytes(captures[0].save()))
    assert second.filter.current.tolist() == [1, 2, 3]
    assert second.active is second.grippers["right"]
    assert described(first) == described(second)


def test_a_tuple_made_anew_is_part_of_the_state_only_where_its_content_differs_to_the_bit():
    arm = Arm(seed=1)
    arm.limits = (0.0, 1)
    capture = capture_of(arm)
    arm.limits = tuple(iter((0.0, 1)))
    assert capture.save()["nodes"] == []
    for other in ((-0.0, 1), (0.0, True), (0.0, 1, 2)):
        arm.limits = other
        assert len(capture.save()["nodes"]) == 1


def test_what_is_loaded_replaces_an_entry_that_changed_in_the_meantime_and_removes_the_others():
    arm = Arm(seed=1)
    capture = capture_of(arm)
    arm.gain = 2.0
    state = capture.save()
    arm.gain, arm.count, arm.mode = 3.0, 9, Mode.GRASP
    capture.load(state)
    assert (arm.gain, arm.count, arm.mode) == (2.0, 0, Mode.REACH)


def test_an_array_that_nothing_refers_to_any_more_is_no_part_of_the_state():
    arm = Arm(seed=1)
    capture = capture_of(arm)
    arm.filter.current[:] = 3.0
    arm.filter.current = np.full(3, 4.0)
    state = capture.save()
    assert len(state["nodes"]) == 1
    assert [content.tolist() for _, content in state["new"]] == [[4, 4, 4]]


def test_an_array_that_only_a_copy_of_its_holder_has_left_is_part_of_the_state():
    first, second = Arm(seed=1), Arm(seed=1)
    for arm in (first, second):
        arm.cache["array"], arm.kept = np.zeros(2), arm.cache
    captures = capture_of(first), capture_of(second)
    first.cache["array"][:] = 7.0
    first.cache = OrderedDict(a=1, b=2, array=np.ones(2))
    captures[1].load(through_bytes(captures[0].save()))
    assert second.kept["array"].tolist() == [7, 7]
    assert second.cache["array"].tolist() == [1, 1]


def test_an_array_met_again_elsewhere_is_part_of_the_state():
    first, second = Arm(seed=1), Arm(seed=1)
    captures = capture_of(first), capture_of(second)
    first.filter.current[:] = 3.0
    first.grippers["left"].last, first.filter.current = first.filter.current, np.zeros(3)
    captures[1].load(through_bytes(captures[0].save()))
    assert second.grippers["left"].last.tolist() == [3, 3, 3]
    assert second.filter.current.tolist() == [0, 0, 0]


def test_a_change_is_seen_though_nothing_had_changed_at_the_saves_before():
    arm = Arm(seed=1)
    capture = capture_of(arm)
    capture.save()
    for change in (lambda: arm.grippers["left"].last.fill(3.0), lambda: arm.visited.clear(), lambda: arm.cache.clear()):
        before = pack(capture.save())
        change()
        assert pack(capture.save()) != before


def test_an_array_that_moves_to_another_attribute_keeps_its_values_there():
    arm = Arm(seed=1)
    capture = capture_of(arm)
    arm.filter.push([1, 2, 3])
    arm.filter.push([4, 5, 6])
    state = through_bytes(capture.save())
    arm.filter.push([7, 8, 9])
    capture.load(state)
    assert arm.filter.last.tolist() == [1, 2, 3]
    assert arm.filter.current.tolist() == [4, 5, 6]
    arm.filter.current[:] = 0
    assert arm.filter.last.tolist() == [1, 2, 3]


def test_a_view_stays_a_view_of_its_array():
    arm = Arm(seed=1)
    capture = capture_of(arm)
    advanced(arm, 1)
    state = through_bytes(capture.save())
    capture.load(state)
    arm.filter.current[0] = 42.0
    assert arm.pair.left[0] == 42.0


def test_memory_order_is_kept_since_sums_depend_on_it():
    arm = Arm(seed=1)
    capture = capture_of(arm)
    advanced(arm, 1)
    state = through_bytes(capture.save())
    del arm.transposed
    capture.load(state)
    assert arm.transposed.flags.f_contiguous
    assert not arm.transposed.flags.c_contiguous


def test_attributes_that_appeared_later_are_removed_again():
    arm = Arm(seed=1)
    capture = capture_of(arm)
    state = capture.save()
    arm.late = 3
    del arm.gain
    capture.load(state)
    assert "late" not in vars(arm)
    assert arm.gain == 0.0


def test_negative_zero_is_not_zero():
    arm = Arm(seed=1)
    capture = capture_of(arm)
    arm.gain = -0.0
    state = through_bytes(capture.save())
    arm.gain = 0.0
    capture.load(state)
    assert np.signbit(arm.gain)


def test_parts_that_a_reset_built_anew_are_states_of_the_old_parts():
    first, second = Arm(seed=1), Arm(seed=1)
    captures = capture_of(first), capture_of(second)
    first.renew()
    advanced(first, 2)
    captures[1].load(through_bytes(captures[0].save()))
    assert described(first) == described(second)
    assert second.also_goal is second.goal


def test_an_object_of_an_unknown_kind_is_refused_by_path():
    arm = Arm(seed=1)
    capture = capture_of(arm)
    arm.extra = Filter()
    with pytest.raises(SnapshotError, match=r"arm\['extra'\].*Filter.*exclude"):
        capture.save()


def test_an_old_part_in_use_beside_its_successor_is_refused():
    arm = Arm(seed=1)
    capture = capture_of(arm)
    arm.history.append(arm.filter)
    arm.filter = Filter()
    with pytest.raises(SnapshotError, match="both in use"):
        capture.save()


def test_excluded_classes_and_foreign_objects_are_left_alone():
    arm = Arm(seed=1)
    arm.window = types.SimpleNamespace(open=True)
    capture = capture_of(arm, exclude=(f"{__name__}.Filter",))
    state = capture.save()
    arm.window.open = False
    arm.filter.push([1, 1, 1])
    arm.viewer = types.SimpleNamespace()
    capture.load(state)
    assert arm.window.open is False
    assert arm.filter.current.tolist() == [1, 1, 1]
    assert "viewer" in vars(arm)


def test_a_state_of_objects_built_otherwise_is_refused():
    other = Arm(seed=1)
    other.grippers["third"] = Filter()
    with pytest.raises(SnapshotError, match=r"laid out otherwise.*versions of packages and of simeval"):
        capture_of(Arm(seed=1)).load(capture_of(other).save())


class Simulation:
    """A falling box and ball, an actuated arm, and an object that looks at them."""

    def __init__(self):
        self.model = mujoco.MjModel.from_xml_string(MODEL)
        self.data = mujoco.MjData(self.model)
        mujoco.mj_forward(self.model, self.data)
        self.arm = Arm(self.data, seed=3)
        self.capture = Capture(self.model, self.data, {"arm": self.arm}, (__name__,))

    def run(self, steps, seed=0):
        rng = np.random.default_rng(seed)
        seen = []
        for _ in range(steps):
            self.data.ctrl[:] = rng.uniform(-1, 1, 1)
            mujoco.mj_step(self.model, self.data)
            self.arm.advance(self.data)
            seen.append(self.seen())
        return seen

    def seen(self):
        """What an observation or a judge may read, none of it computed anew."""
        data = self.data
        contacts = [(c.geom1, c.geom2, c.dist, c.pos.tolist()) for c in data.contact[: data.ncon]]
        fields = [data.qpos, data.qvel, data.xpos, data.site_xpos, data.sensordata, data.cvel, data.qacc, data.qM]
        return pack(
            [field.copy() for field in fields] + [str(contacts), self.arm.position.copy(), self.arm.goal.copy()]
        )


@pytest.mark.parametrize("at", [0, 60, 150])
def test_physics_and_objects_continue_to_the_bit_from_any_moment(at):
    first, second = Simulation(), Simulation()
    first.run(at)
    state = first.capture.save()
    then, expected = first.seen(), first.run(200, seed=1)
    second.run(33, seed=2)
    for simulation, kept in ((first, state), (second, through_bytes(state))):
        simulation.capture.load(kept)
        assert simulation.seen() == then
        assert simulation.run(200, seed=1) == expected


def test_a_moving_view_of_the_engines_memory_moves_after_a_load_too():
    simulation = Simulation()
    simulation.run(3)
    state = through_bytes(simulation.capture.save())
    simulation.capture.load(state)
    assert np.shares_memory(simulation.arm.position, simulation.data.xpos)


def test_changed_model_fields_and_options_are_part_of_the_state():
    first, second = Simulation(), Simulation()
    first.model.geom("box").size[:] = 0.05
    first.model.opt.gravity[2] = -1.6
    first.model.opt.timestep = 0.002
    state = first.capture.save()
    assert set(state["physics"]["model"]) == {"geom_size", "opt.gravity"}
    second.model.body_mass[1] *= 3.0
    second.capture.load(through_bytes(state))
    for field in ("geom_size", "body_mass"):
        assert np.array_equal(getattr(first.model, field), getattr(second.model, field))
    assert second.model.opt.gravity[2] == -1.6
    assert second.model.opt.timestep == 0.002


def test_a_changed_model_field_that_changes_again_is_saved_as_it_is():
    simulation = Simulation()
    for size in (0.05, 0.07):
        simulation.model.geom("box").size[:] = size
        assert simulation.capture.save()["physics"]["model"]["geom_size"][1].tolist() == [size] * 3


def test_a_state_of_another_model_is_refused():
    model = mujoco.MjModel.from_xml_string("<mujoco><worldbody><body/></worldbody></mujoco>")
    state = Capture(model, mujoco.MjData(model), {}, ()).save()
    with pytest.raises(SnapshotError, match="does not fit"):
        Simulation().capture.load(state)


CHILD = """
import json, sys
from pathlib import Path
from simeval.codec import unpack
sys.path.insert(0, sys.argv[2])
import test_capture
simulation = test_capture.Simulation()
simulation.capture.load(unpack(Path(sys.argv[1]).read_bytes()))
print(json.dumps([step.hex() for step in simulation.run(100, seed=1)]))
"""


def test_a_state_continues_in_a_fresh_process(tmp_path):
    simulation = Simulation()
    simulation.run(40)
    (tmp_path / "state").write_bytes(pack(simulation.capture.save()))
    expected = [step.hex() for step in simulation.run(100, seed=1)]
    child = [sys.executable, "-c", CHILD, str(tmp_path / "state"), str(Path(__file__).parent)]
    out = subprocess.run(child, capture_output=True, text=True, check=True)
    assert json.loads(out.stdout) == expected
