"""Models of one ball in a box that learn from windows of frames, as tests train them: small, and in seconds."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from envs.balls.world import Balls
from policies.basic import Uniform
from simeval.evaluation import evaluate
from simeval.noise import Key, StepKey
from simeval.reader import Run
from worldmodels.trainer import WorldModelTrainer
from worldmodels.windows import Window, WindowData
from worldmodels.world import LearnedWorld

VALIDATION = 0.3


def balls(num_slots: int = 1) -> Balls:
    """The simulator, whose pictures have 16 x 16 pixels."""
    return Balls(num_slots, balls=1, cameras="side", image_size=16)


def recorded(folder: Path, episodes: int = 60) -> Run:
    """Episodes of 30 steps under uniform forces."""
    evaluate(balls(8), Uniform(), episodes=episodes, horizon=30, path=folder)
    return Run(folder)


def learned(
    kind: str,
    settings: Mapping[str, Any],
    observation: Sequence[str],
    recipe: Mapping[str, Any],
    run: Run,
    folder: Path,
    resume: bool = False,
) -> dict[str, float]:
    """What a training says last."""
    trainer = WorldModelTrainer(kind, settings, observation, recipe, validation=VALIDATION, device="cpu", threads=1)
    told: dict[str, float] = {}
    trainer.train([run], folder, balls().spec, lambda step, values: told.update(values), resume=resume)
    return told


def window_data(run: Run, keys: Sequence[str], history: int, ahead: int) -> WindowData:
    """The windows that such a training learns from."""
    chosen: dict[str, Any] = {"validation": VALIDATION, "seed": 0, "memory": 2**30}
    return WindowData([run], keys, balls().spec, history=history, ahead=ahead, **chosen)


def first_window(data: WindowData, time: int) -> Window:
    """The window at a step of the first training episode."""
    return data.batch([data.decoded(data.training[0])], [(0, time)])


def begun_in_the_simulator(checkpoint: Path, num_slots: int = 4, **settings: Any) -> LearnedWorld:
    """The model, after three frames of the simulator."""
    return LearnedWorld(
        checkpoint, num_slots=num_slots, batch_size=4, simulator=balls(num_slots), context=3, **settings
    )


def key(step: int, seed: int = 3) -> StepKey:
    """A step's key of the World's stream."""
    return Key(seed).stream("world").key(step)
