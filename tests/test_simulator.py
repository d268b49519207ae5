"""Single simulators as a World: re-use, bounds on how many there are, failures that stay in their row."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest

from simeval.errors import ActionError, ConfigError
from simeval.noise import Key, StepKey
from simeval.simulator import Simulator, SimulatorStep, SimulatorWorld
from simeval.testing import assert_conforms, check_world
from simeval.types import Start

TASKS = tuple(f"task-{index}" for index in range(6))


class Counter(Simulator):
    """A number that actions and noise move; it breaks when it is told to, and keeps count of its kind."""

    alive = 0
    built: ClassVar[list[str]] = []

    def __init__(self, task: str):
        self.task = task
        self.value = np.zeros(2)
        self.steps = 0
        self.closed = False
        Counter.alive += 1
        Counter.built.append(task)

    def reset(self, start: Start, key: StepKey) -> SimulatorStep:
        assert start.task == self.task
        if start.seed == 666:
            raise RuntimeError("the reset broke")
        self.value = Key(start.seed or 0).stream("start").event("value").standard_normal(2)
        self.steps = 0
        return self._step()

    def step(self, action: np.ndarray, key: StepKey) -> SimulatorStep:
        if action[0] > 0.99:
            raise ArithmeticError("the solver broke")
        self.value = 0.9 * self.value + action + 0.1 * key.generator("gust").standard_normal(2)
        self.steps += 1
        return self._step()

    def snapshot(self) -> Mapping[str, Any]:
        return {"value": self.value.copy(), "steps": self.steps}

    def restore(self, state: Mapping[str, Any]) -> SimulatorStep:
        self.value, self.steps = state["value"].copy(), state["steps"]
        return self._step()

    def render(self) -> np.ndarray:
        return np.full((4, 5, 3), 7, dtype=np.uint8)

    def close(self) -> None:
        if not self.closed:
            Counter.alive -= 1
        self.closed = True
        if self.value[0] > 1e6:
            raise OSError("and closing it broke too")

    def _step(self) -> SimulatorStep:
        return SimulatorStep(
            {"state": self.value},
            -float(abs(self.value[0])),
            success=self.steps > 3,
            signals={"steps": np.array(self.steps)},
        )


class CounterWorld(SimulatorWorld):
    """The World of counters."""

    def __init__(self, num_slots: int, max_simulators: int | None = None):
        super().__init__(
            name="counter",
            num_slots=num_slots,
            tasks=TASKS,
            build=Counter,
            observation_space=gymnasium.spaces.Dict({"state": gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)}),
            action_space=gymnasium.spaces.Box(-1.0, 0.99, (2,), np.float32),
            control_dt=0.1,
            fingerprint="counter/1",
            signals={"steps": ((), np.dtype(np.int64))},
            max_simulators=max_simulators,
        )

    def start(self, task: str, seed: int) -> Start:
        self.check_task(task)
        return Start(task, f"count for {task}", seed=seed)

    def horizon(self, task: str) -> int:
        self.check_task(task)
        return 20


class Fragile(CounterWorld):
    """The same with room in the action space for the action that breaks a counter."""

    def __init__(self, num_slots: int):
        super().__init__(num_slots)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)


@pytest.fixture(autouse=True)
def _count_from_zero():
    Counter.alive, Counter.built = 0, []


def keys(step: int, count: int) -> list[StepKey]:
    return [Key(row).stream("world").key(step) for row in range(count)]


def reset(world: SimulatorWorld, tasks: Sequence[str], seeds: Sequence[int] = (0, 1, 2, 3, 4, 5)):
    starts = [world.start(task, seed) for task, seed in zip(tasks, seeds, strict=False)]
    return world.reset(range(len(tasks)), starts, keys(0, len(tasks)))


def test_a_world_of_simulators_conforms():
    assert_conforms(check_world(CounterWorld, tasks=TASKS[:2], steps=20))


def test_simulators_are_built_once_and_used_again():
    world = CounterWorld(2)
    for _ in range(3):
        reset(world, ["task-0", "task-1"])
        reset(world, ["task-1", "task-0"])
    assert sorted(Counter.built) == ["task-0", "task-0", "task-1", "task-1"]


def test_a_suite_of_many_tasks_keeps_few_simulators():
    world = CounterWorld(2, max_simulators=3)
    for task in TASKS * 2:
        reset(world, [task, task])
        assert Counter.alive <= 3
    world.close()
    assert Counter.alive == 0


def test_there_are_always_as_many_simulators_as_slots():
    world = CounterWorld(4, max_simulators=1)
    reset(world, TASKS[:4])
    assert Counter.alive == 4


def test_a_simulator_that_raises_fails_its_own_row_alone():
    world, whole = Fragile(3), Fragile(3)
    reset(world, ["task-0"] * 3)
    reset(whole, ["task-0"] * 3)
    actions = np.array([[0.1, 0], [1.0, 0], [0.2, 0]], dtype=np.float32)
    result = world.step(range(3), actions, keys(1, 3))
    assert list(result.failures) == [1]
    assert "ArithmeticError: the solver broke" in result.failures[1]
    calm = whole.step(range(3), np.array([[0.1, 0], [0, 0], [0.2, 0]], dtype=np.float32), keys(1, 3))
    np.testing.assert_array_equal(result.observation["state"][[0, 2]], calm.observation["state"][[0, 2]])


def test_a_broken_simulator_is_discarded_and_its_slot_can_begin_anew():
    world = Fragile(1)
    reset(world, ["task-0"])
    world.step([0], np.ones((1, 2), dtype=np.float32), keys(1, 1))
    assert Counter.alive == 0
    with pytest.raises(RuntimeError, match="slot 0 was never reset"):
        world.snapshot([0])
    assert not reset(world, ["task-0"]).failures
    assert Counter.built == ["task-0", "task-0"]


def test_stepping_a_slot_that_was_never_reset_fails_that_row():
    world = CounterWorld(2)
    world.reset([0], [world.start("task-0", 0)], keys(0, 1))
    result = world.step([0, 1], np.zeros((2, 2), dtype=np.float32), keys(1, 2))
    assert list(result.failures) == [1]
    assert "never reset" in result.failures[1]


def test_a_reset_that_raises_is_reported_with_its_traceback():
    result = reset(CounterWorld(2), ["task-0", "task-1"], seeds=(0, 666))
    assert list(result.failures) == [1]
    assert "the reset broke" in result.failures[1]


def test_a_simulator_that_breaks_again_on_closing_reports_its_first_fault():
    world = Fragile(1)
    reset(world, ["task-0"])
    world._current[0][1].value[0] = 1e9
    result = world.step([0], np.ones((1, 2), dtype=np.float32), keys(1, 1))
    assert "the solver broke" in result.failures[0]


class Declared(CounterWorld):
    """Counters whose steps are changed on their way out."""

    def __init__(self, **changes: Any):
        super().__init__(1)
        box = gymnasium.spaces.Box
        self.observation_space = gymnasium.spaces.Dict(
            {
                "image": box(0, 255, (2, 2), np.uint8),
                "pair": box(-9, 9, (2,), np.int64),
                "small": box(-9, 9, (), np.int8),
                "state": box(-9, 9, (2,), np.float32),
            }
        )
        observation = {
            "image": np.ones((2, 2), np.uint8),
            "pair": np.array([1, 2]),
            "small": np.int8(1),
            "state": np.ones(2),
        }
        step = {"observation": observation, "signals": {"steps": 1}, **changes}
        for key in [key for key in step if key in observation]:
            observation[key] = step.pop(key)
        observation.pop(step.pop("without", None), None)
        self._build = lambda task: Recited(task, SimulatorStep(**step))


class Recited(Counter):
    """Always gives the same step."""

    def __init__(self, task: str, given: SimulatorStep):
        super().__init__(task)
        self.given = given

    def _step(self) -> SimulatorStep:
        return self.given


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image": np.full((2, 2), 0.7)}, r"observation 'image' is ndarray float64\[2, 2\]; its World declares uint8"),
        ({"image": np.full((2, 2), 7, np.int64)}, r"'image' is ndarray int64\[2, 2\]; its World declares uint8"),
        ({"image": np.ones((2, 1), np.uint8)}, r"uint8\[2, 1\]; its World declares uint8\[2, 2\]"),
        ({"image": np.ma.ones((2, 2), np.uint8)}, "MaskedArray"),
        ({"pair": 7}, r"'pair' is int int64\[\]; its World declares int64\[2\]"),
        ({"pair": [1, 2.5]}, r"'pair' is list float64\[2\]"),
        ({"small": 300}, "'small' has values that its declared dtype int8 cannot hold: 300"),
        ({"state": np.array([0.0, 1e200])}, "'state' has values that its declared dtype float32 cannot hold: 1e"),
        ({"state": None}, "'state' is NoneType object"),
        ({"without": "state"}, r"observations \['image', 'pair', 'small'\]; its World declares .*'state'"),
        ({"signals": {}}, r"signals \[\]; its World declares \['steps'\]"),
        ({"signals": {"steps": 1, "more": 2}}, r"signals \['more', 'steps'\]"),
        ({"signals": {"steps": 0.5}}, "signal 'steps' is float float64"),
        ({"success": 1.0}, "'success' is float float64"),
        ({"terminated": np.array([True])}, r"'terminated' is ndarray bool\[1\]"),
        ({"truncated": "False"}, "'truncated' is str"),
        ({"reward": "0.5"}, "'reward' is str"),
        ({"reward": 1j}, "'reward' is complex"),
        ({"reward": 1j, "small": 300, "signals": {}}, "small.*; .*signals.*; .*reward"),  # all at once
    ],
)
def test_what_does_not_fit_the_declaration_is_a_failure_that_names_it(changes, message):
    world = Declared(**changes)
    assert re.search(message, reset(world, ["task-0"]).failures[0].splitlines()[-1])


def test_what_fits_is_given_in_the_declared_dtype():
    values = {"pair": [1, 2], "small": 5, "state": np.array([0.5, np.inf]), "reward": np.float32(0.5), "success": True}
    result = reset(Declared(**values), ["task-0"])
    assert not result.failures
    assert {key: value.dtype.name for key, value in result.observation.items()} == {
        "image": "uint8",
        "pair": "int64",
        "small": "int8",
        "state": "float32",
    }
    assert result.observation["small"] == [5]
    assert result.observation["state"].tolist() == [[0.5, np.inf]]
    assert result.reward.tolist() == [0.5]
    assert result.success.tolist() == [True]


def test_an_unknown_task_is_refused_before_any_slot_is_reset():
    world = CounterWorld(2)
    starts = [world.start("task-0", 0), Start("task-9", "count", seed=1)]
    with pytest.raises(ConfigError, match="task-9"):
        world.reset([0, 1], starts, keys(0, 2))
    assert Counter.built == []


@pytest.mark.parametrize("slots", [[0, 0], [2], [-1]])
def test_slots_must_be_distinct_and_exist(slots):
    world = CounterWorld(2)
    with pytest.raises(IndexError, match="received"):
        world.reset(slots, [world.start("task-0", 0)] * len(slots), keys(0, len(slots)))


def test_a_bad_action_names_its_slot_and_step_and_moves_no_slot():
    world = CounterWorld(3)
    reset(world, ["task-0"] * 3)
    before = [snapshot.to_bytes() for snapshot in world.snapshot(range(3))]
    actions = np.zeros((3, 2), dtype=np.float32)
    actions[2, 1] = 1.0
    with pytest.raises(ActionError, match=r"slot 2, step 6: action\[1\] is 1.0"):
        world.step(range(3), actions, keys(7, 3))
    assert [snapshot.to_bytes() for snapshot in world.snapshot(range(3))] == before


def test_a_snapshot_goes_to_a_slot_that_ran_another_task():
    world = CounterWorld(2)
    reset(world, ["task-0", "task-3"])
    (snapshot,) = world.snapshot([0])
    restored = world.restore([1], [snapshot])
    np.testing.assert_array_equal(restored.observation["state"][0], snapshot.state["simulator"]["value"])
    assert snapshot.state["task"] == "task-0"


def test_pictures_are_stacked():
    world = CounterWorld(2)
    reset(world, ["task-0", "task-1"])
    assert world.render([1, 0]).shape == (2, 4, 5, 3)
