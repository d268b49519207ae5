"""Do Meta-World episodes run here equal those of a bare Python loop over the package's own environments and experts?

``python benchmarks/metaworld_equality.py [--seeds N] [--slots N] [task ...]``. Every observation, reward and success
flag of every episode is compared bit for bit. By default 20 of the 50 tasks and 10 seeds. Exits with 1 on a difference.
"""

import argparse
import json
import sys
import warnings
from collections.abc import Sequence

import numpy as np

from envs.metaworld import HORIZON, MetaWorld, bare_env, instructions
from policies.metaworld import MetaWorldExpert
from simeval import Episode, Rollout, run, together

_TASKS = [task for index, task in enumerate(instructions()) if index % 5 in (0, 2)]


def bare_episode(task: str, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """States [T + 1, 39], rewards [T] and success flags [T] of the loop one would write without this package."""
    from metaworld.policies import ENV_POLICY_MAP

    env, expert = bare_env(task, seed), ENV_POLICY_MAP[task]()
    state, _ = env.reset()
    states, rewards, successes = [state], [], []
    for _ in range(HORIZON):
        state, reward, _, _, info = env.step(expert.get_action(state.copy()))
        states.append(state)
        rewards.append(reward)
        successes.append(info["success"] > 0)
        if successes[-1]:
            break
    env.close()
    return np.array(states), np.array(rewards), np.array(successes)


def differs(episode: Episode, task: str, seed: int) -> bool:
    """Whether an episode of the engine is not the bare loop's, to the bit."""
    states, rewards, successes = bare_episode(task, seed)
    recorded = (episode.observation["state"], episode.reward, episode.success)
    return not all(np.array_equal(a, b) for a, b in zip(recorded, (states, rewards, successes), strict=True))


def compare(tasks: Sequence[str], seeds: int, slots: int) -> dict[str, dict[str, int]]:
    """Task -> how many episodes there were, succeeded, and differ from the bare loop's."""
    world = MetaWorld(list(tasks), num_slots=slots)
    rollouts = [Rollout(world.start(task, seed), seed=seed, horizon=HORIZON) for task in tasks for seed in range(seeds)]
    episodes = run(together(rollouts), world, MetaWorldExpert())
    world.close()
    table = {task: {"episodes": 0, "successes": 0, "different": 0} for task in tasks}
    for rollout, episode in zip(rollouts, episodes, strict=True):
        row = table[rollout.start.task]
        row["episodes"] += 1
        row["successes"] += int(episode.succeeded)
        row["different"] += int(differs(episode, rollout.start.task, rollout.start.seed or 0))
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="*", default=_TASKS)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--slots", type=int, default=8)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", message=r"Constant\(s\) may be too high")
    table = compare(arguments.tasks, arguments.seeds, arguments.slots)
    print("| task | episodes | expert succeeds | differ from the bare loop |\n| --- | --- | --- | --- |")
    for task, row in table.items():
        print(f"| {task} | {row['episodes']} | {row['successes']} | {row['different']} |")
    totals = {key: sum(row[key] for row in table.values()) for key in ("episodes", "successes", "different")}
    print(json.dumps(totals))
    return int(totals["different"] > 0)


if __name__ == "__main__":
    sys.exit(main())
