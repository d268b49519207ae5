"""Run by LeRobot's interpreter: makes small policies with LeRobot, and plays them as LeRobot does, episode by episode.

``python lerobot_reference.py DATASET FOLDER INPUTS OUTPUTS``: INPUTS (npz) holds ``proprio`` [E, T, D], ``front``
[E, T, H, W, 3], and ``noise`` [E, K, H, A] for the policies that take some; OUTPUTS gets what LeRobot reads of the
dataset, the actions [E, T, A] of each policy in LeRobot's loop (``there/…``), in simeval's, all episodes together
(``here/…``), and of the last episode alone (``alone/…``), and what is said of damaged checkpoints (``refused/…``).
"""

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from gymnasium import spaces
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from lerobot.policies.factory import make_policy, make_policy_config, make_pre_post_processors
from safetensors.numpy import load_file, save_file

from policies.lerobot import lerobot_policy
from policies.lerobot_folder import load
from simeval.errors import SimevalError
from simeval.noise import Key
from simeval.types import WorldSpec

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


def play_there(policy, before, after, proprio: np.ndarray, front: np.ndarray, noise: np.ndarray | None) -> np.ndarray:
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


def play_here(folder: Path, given: dict[str, np.ndarray], episodes: Sequence[int]) -> np.ndarray:
    """The same episodes as rows of one batch, the memory outside."""
    shapes = given["proprio"].shape[2:], given["front"].shape[2:]
    observation = {"proprio": spaces.Box(-9, 9, shapes[0]), "image_front": spaces.Box(0, 255, shapes[1], np.uint8)}
    spec = WorldSpec("made", spaces.Dict(observation), spaces.Box(-1, 1, (4,)), 0.05, ("t",))
    policy = lerobot_policy(str(folder), batch_size=4, device="cpu").bind(spec)
    rows, actions = list(episodes), []
    memory = policy.initial_memory(len(rows))
    for step in range(given["proprio"].shape[1]):
        shown = {"proprio": given["proprio"][rows, step], "image_front": given["front"][rows, step]}
        keys = [Key(row).stream("policy").key(step) for row in rows]
        result = policy.act(shown, ["go"] * len(rows), memory, keys)
        memory = result.memory
        actions.append(result.action)
    return np.stack(actions, axis=1)


def refusals(whole: Path, folder: Path) -> dict[str, str]:
    """What is said of checkpoints that are not whole."""
    statistics = "policy_preprocessor_step_3_normalizer_processor.safetensors"
    damages = ("missing", "infinite", "class", "weights", "kind")
    for damage in damages:
        shutil.copytree(whole, folder / damage)
    kept = load_file(whole / statistics)
    save_file({name: array for name, array in kept.items() if "state" not in name}, folder / "missing" / statistics)
    save_file({**kept, "observation.state.std": np.full(3, np.inf, np.float32)}, folder / "infinite" / statistics)
    steps = json.loads((folder / "class" / "policy_preprocessor.json").read_text())
    steps["steps"][1] = {"class": "os.path.join", "config": {}}
    (folder / "class" / "policy_preprocessor.json").write_text(json.dumps(steps))
    weights = load_file(whole / "model.safetensors")
    save_file(dict(list(weights.items())[1:]), folder / "weights" / "model.safetensors")
    config = json.loads((whole / "config.json").read_text())
    (folder / "kind" / "config.json").write_text(json.dumps({**config, "type": "tdmpc"}))
    said = {}
    for damage in damages:
        try:
            load(str(folder / damage), "cpu")
            said[damage] = "nothing"
        except SimevalError as error:
            said[damage] = str(error)
    return said


def main(dataset_folder: str, folder: str, inputs: str, outputs: str) -> None:
    """Make, play, and write down."""
    torch.set_num_threads(1)
    dataset = LeRobotDataset("made/set", root=dataset_folder)
    frames = [dataset[index] for index in range(len(dataset))]
    keys = ("observation.state", "observation.images.front", "action", "next.done")
    found = {f"read/{key}": np.stack([np.asarray(frame[key]) for frame in frames]) for key in keys}
    found["read/task"] = np.array([frame["task"] for frame in frames])
    found["read/fps"] = np.array(dataset.fps)
    given = dict(np.load(inputs))
    episodes = range(len(given["proprio"]))
    for name, settings in POLICIES.items():
        parts = make(Path(folder) / name, dataset, dict(settings))
        noise = given["noise"] if name == "diffusion" else [None] * len(episodes)
        played = [play_there(*parts, given["proprio"][e], given["front"][e], noise[e]) for e in episodes]
        found[f"there/{name}"] = np.stack(played)
        found[f"here/{name}"] = play_here(Path(folder) / name, given, episodes)
        found[f"alone/{name}"] = play_here(Path(folder) / name, given, episodes[-1:])[0]
    for damage, text in refusals(Path(folder) / "act", Path(folder) / "damaged").items():
        found[f"refused/{damage}"] = np.array(text)
    np.savez(outputs, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
