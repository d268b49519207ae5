"""Small policies of every kind learn to reach where they are told to, from a few recorded episodes."""

from pathlib import Path

import pytest
import torch

from policies.act import ActionChunkingTransformer
from policies.diffusion import DiffusionPolicy
from policies.learned import checkpoint
from policies.learned.behaviour_cloning import BehaviourCloning, Recipe
from policies.learned.demonstrations import Demonstrations
from policies.learned.network import ChunkNetwork
from policies.learned.policy import learned
from policies.noisy import ActionNoise
from simeval.evaluation import evaluate
from simeval.reader import Run
from simeval.testing import ToyExpert, ToySimulator

torch.set_num_threads(1)  # tests run side by side
TASKS = ["reach-left", "reach-right"]
NETWORKS = {
    "act": (ActionChunkingTransformer, {"depth": 1, "style_depth": 1, "latent": 4}),
    "diffusion": (DiffusionPolicy, {"channels": (16, 32), "steps": 5}),
}


def successes(network: ChunkNetwork, folder: Path) -> int:
    checkpoint.save(folder, network, {"by": "a test"})
    execute = None if network.kind == "act" else 2
    policy = learned(folder, execute=execute, batch_size=8, device="cpu")
    return sum(episode.succeeded for episode in evaluate(ToySimulator(8), policy, episodes=8, tasks=TASKS, seed=1))


@pytest.mark.slow
@pytest.mark.parametrize("kind", NETWORKS)
def test_a_policy_learns_to_reach_where_it_is_told_to(kind: str, tmp_path: Path) -> None:
    shown = tmp_path / "shown"
    evaluate(ToySimulator(8), ActionNoise(ToyExpert(), 0.2), episodes=40, tasks=TASKS, path=shown)
    data = Demonstrations([Run(shown)], ("state",), 4, ToySimulator.control_dt)
    make, settings = NETWORKS[kind]
    torch.manual_seed(0)
    network = make(data.features, data.vocabulary, dim=32, heads=2, context_depth=1, **settings)
    recipe = Recipe(250, batch_size=32, learning_rate=3e-3, warmup=20, ema=0.98, validate_every=250, save_every=250)
    cloning = BehaviourCloning(network, data, recipe, tmp_path / "trained")
    cloning.fit_statistics()
    untrained = successes(network, tmp_path / "untrained")
    losses: list[float] = []
    cloning.run(lambda step, values: losses.append(values.get("loss", losses[-1] if losses else 0.0)))
    trained = successes(checkpoint.load(tmp_path / "trained"), tmp_path / "again")
    assert losses[-1] < 0.7 * losses[0]
    assert trained >= untrained + 8
