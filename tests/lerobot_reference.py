"""Run by LeRobot's interpreter: makes small policies with LeRobot, and plays them as LeRobot does, episode by episode.

``python lerobot_reference.py DATASET FOLDER INPUTS OUTPUTS``: INPUTS (npz) holds ``proprio`` [E, T, D], ``front``
[E, T, H, W, 3], and ``noise`` [E, K, H, A] for the policies that take some; OUTPUTS gets the actions [E, T, A] of each
policy, and what LeRobot reads of the dataset.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from lerobot.policies.factory import make_policy, make_policy_config, make_pre_post_processors

POLICIES = {
    "act": {
        "type": "act",
        "chunk_size": 8,
        "n_action_steps": 3,
        "dim_model": 32,
        "n_heads": 2,
        "dim_feedforward": 64,
        "n_encoder_layers": 1,
        "latent_dim": 4,
        "n_vae_encoder_layers": 1,
    },
    "ensembled": {
        "type": "act",
        "chunk_size": 4,
        "n_action_steps": 1,
        "temporal_ensemble_coeff": 0.1,
        "dim_model": 32,
        "n_heads": 2,
        "dim_feedforward": 64,
        "n_encoder_layers": 1,
        "use_vae": False,
    },
    "diffusion": {
        "type": "diffusion",
        "n_obs_steps": 2,
        "horizon": 8,
        "n_action_steps": 3,
        "down_dims": (16, 32),
        "n_groups": 4,
        "diffusion_step_embed_dim": 16,
        "spatial_softmax_num_keypoints": 4,
        "crop_shape": None,
        "noise_scheduler_type": "DDIM",
        "num_train_timesteps": 10,
        "num_inference_steps": 4,
    },
}


def make(folder: Path, dataset: LeRobotDataset, settings: dict) -> tuple:
    """An untrained policy with the dataset's statistics, saved as LeRobot's trainer saves one."""
    torch.manual_seed(0)
    common = {"device": "cpu", "push_to_hub": False, "pretrained_backbone_weights": None}
    config = make_policy_config(settings.pop("type"), **common, **settings)
    policy = make_policy(config, ds_meta=dataset.meta).eval()
    before, after = make_pre_post_processors(config, dataset_stats=dataset.meta.stats)
    for part in (policy, before, after):
        part.save_pretrained(folder)
    return policy, before, after


def play(policy, before, after, proprio: np.ndarray, front: np.ndarray, noise: np.ndarray | None) -> np.ndarray:
    """LeRobot's own loop: one observation in, one action out, the queues inside."""
    policy.reset()
    actions = []
    for step in range(len(proprio)):
        observation = {
            "observation.state": torch.from_numpy(proprio[step])[None],
            "observation.images.front": torch.from_numpy(front[step]).permute(2, 0, 1)[None].float() / 255,
            "task": ["go"],
        }
        ready = before(observation)
        with torch.no_grad():
            if noise is None:
                action = policy.select_action(ready)
            else:
                drawn = torch.from_numpy(noise[step // policy.config.n_action_steps])[None]
                action = policy.select_action(ready, noise=drawn)
        actions.append(after(action)[0].numpy())
    return np.stack(actions)


def main(dataset_folder: str, folder: str, inputs: str, outputs: str) -> None:
    """Make, play, and write down."""
    torch.set_num_threads(1)
    dataset = LeRobotDataset("made/set", root=dataset_folder)
    frames = [dataset[index] for index in range(len(dataset))]
    keys = ("observation.state", "observation.images.front", "action", "next.done")
    found = {f"read/{key}": np.stack([np.asarray(frame[key]) for frame in frames]) for key in keys}
    found["read/task"] = np.array([frame["task"] for frame in frames])
    found["read/fps"] = np.array(dataset.fps)
    given = np.load(inputs)
    for name, settings in POLICIES.items():
        parts = make(Path(folder) / name, dataset, dict(settings))
        noise = given["noise"] if name == "diffusion" else None
        found[name] = np.stack(
            [
                play(*parts, given["proprio"][e], given["front"][e], None if noise is None else noise[e])
                for e in range(len(given["proprio"]))
            ]
        )
    np.savez(outputs, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
