"""Checkpoints: a folder with ``config.json`` and ``model.safetensors``. Nothing in it is executed when it is read."""

import hashlib
import json
import os
from collections.abc import Mapping
from importlib import import_module, resources
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file, save_file

from policies.learned.features import Features
from policies.learned.network import ChunkNetwork
from policies.learned.words import Vocabulary
from simeval.errors import ConfigError, unknown

FORMAT = "simeval-policy/1"
_KINDS = {"act": "policies.act", "diffusion": "policies.diffusion", "vla": "policies.vla"}
"""Kind of network -> the module that defines it; a checkpoint can ask for no other code."""
_REGISTERED: dict[str, type[ChunkNetwork]] = {}


def register(network: type[ChunkNetwork]) -> type[ChunkNetwork]:
    """Let checkpoints name this class by its ``kind``; a decorator."""
    _REGISTERED[network.kind] = network
    return network


def network_class(kind: str) -> type[ChunkNetwork]:
    """The registered class of a kind."""
    if kind not in _REGISTERED and kind in _KINDS:
        import_module(_KINDS[kind])
    if kind not in _REGISTERED:
        raise unknown("kind of policy", kind, {*_KINDS, *_REGISTERED})
    return _REGISTERED[kind]


def save(folder: Path, network: ChunkNetwork, origin: Mapping[str, Any], stored: str = "float32") -> None:
    """Write a checkpoint; ``origin`` (JSON data) says how it was made. An existing one is replaced as a whole.

    ``stored``: the type of the weights on disk, float32 or float16 (half the size); statistics keep theirs.
    """
    if problem := network.problem():
        raise ConfigError(f"this network cannot be saved: {problem}; fit its statistics first")
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "format": FORMAT,
        "kind": network.kind,
        "settings": network.settings,
        "features": network.features.to_json(),
        "vocabulary": {"words": list(network.vocabulary.words), "length": network.vocabulary.length},
        "origin": dict(origin),
    }
    weights = {name: value.detach().cpu().contiguous() for name, value in network.state_dict().items()}
    if stored == "float16":
        weights |= {name: weights[name].half() for name, _ in network.named_parameters()}
    elif stored != "float32":
        raise ConfigError(f"weights are stored as float32 or float16; received {stored!r}")
    save_file(weights, folder / "model.safetensors.tmp")
    (folder / "config.json.tmp").write_text(json.dumps(config, indent=1) + "\n")
    for name in ("model.safetensors", "config.json"):
        os.replace(folder / f"{name}.tmp", folder / name)


def located(place: str | Path) -> Path:
    """The folder of a checkpoint: ``place`` itself, or the one that is shipped under that name."""
    folder = Path(place)
    if (folder / "config.json").is_file():
        return folder
    shipped = _shipped()
    if str(place) in shipped:
        return shipped[str(place)]
    raise ConfigError(
        f"{folder} is no checkpoint (it has no config.json); `simeval train` writes one, and these are shipped: "
        f"{', '.join(shipped) or 'none'}"
    )


def _shipped() -> dict[str, Path]:
    root = Path(str(resources.files("assets"))) / "policies"
    return {path.parent.name: path.parent for path in sorted(root.glob("*/config.json"))}


def load(folder: Path) -> ChunkNetwork:
    """The network of a checkpoint, in evaluation mode on the CPU; ``ConfigError`` says what does not fit."""
    folder = located(folder)
    config = _config(folder)
    try:
        features = Features.from_json(config["features"])
        vocabulary = Vocabulary(config["vocabulary"]["words"], int(config["vocabulary"]["length"]))
        network = network_class(str(config["kind"]))(features, vocabulary, **config["settings"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{folder / 'config.json'} describes no policy that can be built ({error!r})") from None
    weights = _weights(folder / "model.safetensors")
    expected = network.state_dict()
    missing, foreign = sorted(expected.keys() - weights.keys()), sorted(weights.keys() - expected.keys())
    shapes = [
        f"{name} is {list(weights[name].shape)}, not {list(value.shape)}"
        for name, value in expected.items()
        if name in weights and weights[name].shape != value.shape
    ]
    problems = [
        *([f"missing: {_few(missing)}"] if missing else []),
        *([f"not known: {_few(foreign)}"] if foreign else []),
        *([f"of another shape: {_few(shapes)}"] if shapes else []),
    ]
    if problems:
        raise ConfigError(f"the weights in {folder} do not fit its config.json; {'; '.join(problems)}")
    network.load_state_dict(weights)
    problem = network.problem() or _not_finite(weights)
    if problem:
        raise ConfigError(f"the checkpoint {folder} cannot be used: {problem}; train it again, or ask who made it")
    return network.eval()


def content_hash(folder: Path) -> str:
    """16 hex digits of a checkpoint's content."""
    digest = hashlib.blake2b(digest_size=8)
    for name in ("config.json", "model.safetensors"):
        digest.update((folder / name).read_bytes())
    return digest.hexdigest()


def _config(folder: Path) -> Mapping[str, Any]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} cannot be read ({error}); the checkpoint was altered") from None
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise ConfigError(f"{path} is no {FORMAT} checkpoint; `simeval train` writes one")
    return config


def _weights(path: Path) -> dict[str, torch.Tensor]:
    try:
        return load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        raise ConfigError(f"{path} cannot be read ({error}); the checkpoint is incomplete or damaged") from None


def _not_finite(weights: Mapping[str, torch.Tensor]) -> str | None:
    names = [name for name, value in weights.items() if not torch.isfinite(value).all()]
    return f"weights that are not finite: {_few(sorted(names))}" if names else None


def _few(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f", … ({len(names)} in all)" if len(names) > 4 else "")
