"""Speed of learned policies as ratios, each against a peer measured in the same run; the last line is a JSON object.

``evaluation_vs_one_environment``: episodes per minute of the engine on 16 tabletop slots with two 96 px cameras,
against a loop over one environment that calls the same policy for every chunk and draws every step, as loops do.
``training_from_traces_vs_memory``: training steps per second when the episodes do not fit into memory and are decoded
again and again, against all of them decoded beforehand.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from envs.tabletop import Tabletop
from policies.learned import checkpoint
from policies.learned.behaviour_cloning import BehaviourCloning, Recipe
from policies.learned.chunks import NetworkChunks
from policies.learned.demonstrations import Batch, Demonstrations
from policies.learned.policy import learned
from policies.noisy import ActionNoise
from policies.tabletop import TabletopExpert
from policies.vla import VisionLanguageAction
from simeval import Engine, MemoryStore, MonteCarlo, RunStore, Setting, Start, folder
from simeval.noise import Key
from simeval.reader import Run
from simeval.store import IMAGES

CHECKPOINT = Path("assets/policies/tabletop")
TASKS = ("reach", "push", "press_button", "open_drawer")
CAMERAS = ("front", "wrist")
OBSERVATION = ("image_front", "image_wrist", "proprio")


def one_environment(tasks: tuple[str, ...], episodes: int, execute: int) -> float:
    """Episodes per minute of a loop over one environment."""
    world = Tabletop(task=tasks, num_slots=1, cameras=CAMERAS)
    model = NetworkChunks(CHECKPOINT)
    starts = [start for task in tasks for start in world.starts(task, episodes, 0)]
    began = time.perf_counter()
    for start in starts:
        _episode(world, model, start, execute)
    minutes = (time.perf_counter() - began) / 60
    world.close()
    return len(starts) / minutes


def _episode(world: Tabletop, model: NetworkChunks, start: Start, execute: int) -> None:
    own, policy = Key(start.seed or 0).stream("world"), Key(start.seed or 0).stream("policy")
    result = world.reset([0], [start], [own.key(0)])
    queue: list[np.ndarray] = []
    held = 0
    for step in range(world.horizon(start.task)):
        if not queue:
            chunk = model.predict(result.observation, [start.instruction], [policy.key(step)]).chunk[0]
            queue = list(np.clip(chunk[:execute], -1, 1))
        result = world.step([0], queue.pop(0)[None].astype(np.float32), [own.key(step + 1)])
        held = held + 1 if result.success[0] else 0
        if held >= world.success_hold:
            return


def engine(tasks: tuple[str, ...], episodes: int, execute: int) -> float:
    """Episodes per minute of the engine."""
    world = Tabletop(task=tasks, num_slots=16, cameras=CAMERAS)
    policy = learned(CHECKPOINT, execute=execute)
    study = MonteCarlo(episodes=episodes)
    began = time.perf_counter()
    with Engine(
        {"world": world}, {"world": {"policy": policy}}, MemoryStore(), keep=lambda path: not path.startswith(IMAGES)
    ) as run:
        run.run(study.protocol(Setting({"world": world}, {"world": ["policy"]}, 0)))
    minutes = (time.perf_counter() - began) / 60
    world.close()
    return len(tasks) * episodes / minutes


def recorded(path: Path, episodes: int) -> Run:
    """A run of noisy experts with pictures."""
    world = Tabletop(task=TASKS, num_slots=16, cameras=CAMERAS)
    study = MonteCarlo(episodes=episodes)
    folder.create(path, folder.Manifest({}, {}, {}))
    with Engine({"world": world}, {"world": {"policy": ActionNoise(TabletopExpert(), 0.1)}}, RunStore(path)) as run:
        run.run(study.protocol(Setting({"world": world}, {"world": ["policy"]}, 0)))
    world.close()
    return Run(path)


def training(run: Run, memory: int, steps: int, folder_: Path) -> Callable[[], float]:
    """Something that trains for ``steps`` more and gives the steps per second."""
    data = Demonstrations([run], OBSERVATION, 16, 0.05, memory=memory)
    torch.manual_seed(0)
    network = VisionLanguageAction(data.features, data.vocabulary)
    work = BehaviourCloning(network, data, Recipe(steps=10**6, validate_every=10**6, save_every=10**6), folder_)
    work.fit_statistics()
    batches: Iterator[Batch] = data.batches(32)

    def go() -> float:
        began = time.perf_counter()
        for _ in range(steps):
            work.advance(next(batches))
        return steps / (time.perf_counter() - began)

    go()
    return go


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few repetitions, to see that it runs")
    quick = parser.parse_args().quick
    episodes, execute = (2 if quick else 12), 8
    sides = {"engine": 0.0, "loop": 0.0}
    for _ in range(1 if quick else 3):
        sides["engine"] = max(sides["engine"], engine(TASKS, episodes, execute))
        sides["loop"] = max(sides["loop"], one_environment(TASKS, max(1, episodes // 4), execute))
    print(f"16 slots: {sides['engine']:.0f} episodes/min; one environment: {sides['loop']:.0f} episodes/min")
    with tempfile.TemporaryDirectory() as temporary:
        run = recorded(Path(temporary) / "run", 4 if quick else 40)
        steps = 4 if quick else 10
        traces = training(run, 1 << 27, steps, Path(temporary) / "a")
        memory = training(run, 8 << 30, steps, Path(temporary) / "b")
        speeds = [(traces(), memory()) for _ in range(1 if quick else 4)]
    from_traces, from_memory = (max(side) for side in zip(*speeds, strict=True))
    print(f"training: {from_traces:.2f} steps/s from traces, {from_memory:.2f} from memory")
    size = checkpoint.load(CHECKPOINT)
    ratios = {
        "evaluation_vs_one_environment": round(sides["engine"] / sides["loop"], 2),
        "training_from_traces_vs_memory": round(from_traces / from_memory, 3),
        "parameters_millions": round(sum(p.numel() for p in size.parameters()) / 1e6, 2),
    }
    print(json.dumps(ratios))


if __name__ == "__main__":
    main()
