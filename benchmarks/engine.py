"""The engine's speed as ratios, each against a peer measured in the same run; the last line is one JSON object.

Each pair is measured alternately several times and the fastest of each side is kept: noise only ever adds time.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import mujoco
import numpy as np
from metaworld.policies import ENV_POLICY_MAP
from mujoco.rollout import Rollout as Physics

from envs.metaworld import MetaWorld, bare_env, instructions
from envs.tabletop import Tabletop
from policies.basic import Uniform
from policies.metaworld import MetaWorldExpert
from policies.tabletop import TabletopExpert
from simeval import Engine, MemoryStore, MonteCarlo, Policy, RunStore, Setting, Store, World, folder
from simeval.noise import Stream

REPEATS = 5
METAWORLD_TASKS = (
    "reach-v3",
    "push-v3",
    "door-open-v3",
    "drawer-close-v3",
    "button-press-topdown-v3",
    "window-open-v3",
)


def fastest(sides: Sequence[Callable[[], float]], repeats: int = REPEATS) -> list[float]:
    """The best figure of each side (steps/s), the sides taking turns."""
    best = [0.0] * len(sides)
    for _ in range(repeats):
        for index, side in enumerate(sides):
            best[index] = max(best[index], side())
    return best


def engine_speed(world: World, policy: Policy, study: MonteCarlo, record: bool = True) -> float:
    """Control steps/s of a study, from first reset to last shard on disk; without ``record``, nothing is kept."""
    with tempfile.TemporaryDirectory() as temporary:
        store: Store = MemoryStore()
        if record:
            path = Path(temporary) / "run"
            folder.create(path, folder.Manifest({}, {}, {}))
            store = RunStore(path)
        began = time.perf_counter()
        with Engine({"world": world}, {"world": {"policy": policy}}, store, keep=lambda _: record) as engine:
            engine.run(study.protocol(Setting({"world": world}, {"world": ["policy"]}, 0)))
        return engine.steps / (time.perf_counter() - began)


def metaworld_vs_bare_loop(episodes: int) -> float:
    """The engine with state traces on, against a bare Python loop over the same environments, expert and seeds."""
    world = MetaWorld(task=METAWORLD_TASKS, num_slots=6)
    study = MonteCarlo(episodes=episodes)
    experts = {task: ENV_POLICY_MAP[task]() for task in METAWORLD_TASKS}
    envs = {
        (task, start.seed): bare_env(task, start.seed)
        for task in METAWORLD_TASKS
        for start in world.starts(task, episodes, 0)
    }

    def bare() -> float:
        steps = 0
        began = time.perf_counter()
        for (task, _), env in envs.items():
            expert = experts[task]
            observation, _ = env.reset()
            for _ in range(500):
                observation, _, _, _, info = env.step(expert.get_action(observation))
                steps += 1
                if info["success"]:
                    break
        return steps / (time.perf_counter() - began)

    ours, peer = fastest([lambda: engine_speed(world, MetaWorldExpert(), study), bare])
    world.close()
    print(f"Meta-World: engine {ours:.0f} steps/s, bare loop {peer:.0f} steps/s")
    return ours / peer


def tabletop_vs_mujoco_rollout(slots: int, horizon: int) -> float:
    """The engine with random actions and states recorded, against bare ``mujoco.rollout`` over the same models."""
    world = Tabletop(num_slots=slots)
    study = MonteCarlo(episodes=max(1, slots // len(world.tasks)), horizon=horizon)
    model = world.models[0]
    substeps = round(world.control_dt / model.opt.timestep)
    threads = world.threads
    datas = [mujoco.MjData(model) for _ in range(threads)]
    starts = [world.start(world.tasks[slot % len(world.tasks)], slot) for slot in range(slots)]
    world.reset(range(slots), starts, [Stream(slot, "world").key(0) for slot in range(slots)])
    records = b"".join(snapshot.state["record"] for snapshot in world.snapshot(range(slots)))
    initial = np.ascontiguousarray(np.frombuffer(records, dtype=world.record)["physics"])
    rng = np.random.default_rng(0)
    low, high = model.actuator_ctrlrange.T
    control = rng.uniform(low, high, (horizon, slots, 1, model.nu)).repeat(substeps, axis=2)

    def bare() -> float:
        states = initial.copy()
        with Physics(nthread=threads if threads > 1 else 0) as physics:
            began = time.perf_counter()
            for step in range(horizon):
                out, _ = physics.rollout([model] * slots, datas, states, np.ascontiguousarray(control[step]))
                states = np.ascontiguousarray(out[:, -1])
            return horizon * slots / (time.perf_counter() - began)

    ours, peer = fastest([lambda: engine_speed(world, Uniform(), study), bare])
    world.close()
    print(
        f"Tabletop, {slots} slots: engine {ours:.0f} steps/s, mujoco.rollout {peer:.0f} steps/s ({substeps} substeps)"
    )
    return ours / peer


class Watching(TabletopExpert):
    """The expert, looking at pictures as well: what nobody looks at is not drawn."""

    def __init__(self, cameras: Sequence[str]):
        super().__init__()
        self.observation_keys = (*super().observation_keys, *(f"image_{camera}" for camera in cameras))


def recording_cost(cameras: tuple[str, ...], episodes: int, repeats: int = REPEATS) -> float:
    """The share of a tabletop run's wall time that recording takes: the median over ``repeats`` pairs of runs."""
    world = Tabletop(num_slots=16, cameras=cameras, image_size=96)
    study = MonteCarlo(episodes=episodes)
    expert = Watching(cameras)
    pairs = []
    for turn in range(repeats):
        sides = {record: engine_speed(world, expert, study, record) for record in ((True, False)[:: (-1) ** turn])}
        pairs.append((sides[True], sides[False]))
    world.close()
    recorded, bare = (statistics.median(side) for side in zip(*pairs, strict=True))
    print(f"Recording, cameras {list(cameras)}: {recorded:.0f} steps/s with, {bare:.0f} without")
    return statistics.median(1 - recorded / bare for recorded, bare in pairs)


def tabletop_snapshot_restore_us(repeats: int = 2000) -> dict[str, float]:
    """Median time to snapshot and to restore one tabletop slot [µs]."""
    world = Tabletop(num_slots=2)
    world.reset([0, 1], [world.start("stack", seed) for seed in (0, 1)], [Stream(s, "world").key(0) for s in (0, 1)])
    taken, put = [], []
    for _ in range(repeats):
        began = time.perf_counter_ns()
        snapshots = world.snapshot([0])
        middle = time.perf_counter_ns()
        world.restore([1], snapshots)
        taken.append((middle - began) / 1e3)
        put.append((time.perf_counter_ns() - middle) / 1e3)
    world.close()
    return {"snapshot": round(statistics.median(taken), 1), "restore": round(statistics.median(put), 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few episodes only: does it run, not how fast")
    quick = parser.parse_args().quick
    assert instructions()
    ratios = {
        "metaworld_vs_bare_loop": round(metaworld_vs_bare_loop(1 if quick else 5), 3),
        "tabletop_vs_mujoco_rollout": round(tabletop_vs_mujoco_rollout(*((16, 10) if quick else (64, 60))), 3),
        "recording_cost_state": round(recording_cost((), *((1, 1) if quick else (12, 30))), 3),
        "recording_cost_images": round(recording_cost(("front", "wrist"), 1 if quick else 2), 3),
        "tabletop_snapshot_restore_us": tabletop_snapshot_restore_us(200 if quick else 2000),
    }
    print(json.dumps(ratios))


if __name__ == "__main__":
    main()
