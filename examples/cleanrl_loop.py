"""A World as a Gymnasium vector environment: the loop that CleanRL-style code runs, here with random actions."""

import gymnasium

import simeval
from envs.tabletop import Tabletop

world = Tabletop(task="reach", num_slots=8)
envs = gymnasium.wrappers.vector.RecordEpisodeStatistics(simeval.as_vector_env(world, seed=1))
observations, infos = envs.reset(seed=1)
envs.action_space.seed(1)
finished = []
for _ in range(200):
    observations, rewards, terminations, truncations, infos = envs.step(envs.action_space.sample())
    if "episode" in infos:
        finished += list(infos["episode"]["r"][infos["_episode"]])
envs.close()
print(f"{len(finished)} episodes, mean return {sum(finished) / len(finished):.2f}")
