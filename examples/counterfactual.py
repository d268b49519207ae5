"""What if the gripper had let go? A counterfactual twin: the same state and noise, other actions from one step on."""

import numpy as np

from envs.tabletop import Tabletop
from policies.tabletop import TabletopExpert
from simeval import Perturbation, Protocol, Rollout, parallel, run

world = Tabletop(task="stack", num_slots=16)


def twin(seed: int) -> Protocol:
    """The factual episode, its exact continuation from halfway, and one whose gripper opens there for a while."""
    start = world.start("stack", seed)
    (factual,) = yield [Rollout(start, seed, horizon=world.horizon("stack"))]
    half = factual.length // 2
    let_go = Perturbation("actuation.replace", params={"value": [0, 0, 0, 0, -1]}, from_step=half, to_step=half + 6)
    same, other = yield [factual.rollout.branch(half), factual.rollout.branch(half, perturbations=(let_go,))]
    return factual, half, same, other


results = run(parallel(*(twin(seed) for seed in range(12))), world, TabletopExpert())
world.close()
for factual, half, same, _ in results:
    np.testing.assert_array_equal(same.observation["state"], factual.observation["state"][half:])
print("12 continuations are bit-identical to their parents")
print("factual successes:", sum(factual.succeeded for factual, *_ in results))
print("after letting go:", sum(other.succeeded for *_, other in results))
lengths = [half + other.length - factual.length for factual, half, _, other in results if other.succeeded]
print(f"recovering took {np.mean(lengths):.1f} steps more on average" if lengths else "it never recovered")
