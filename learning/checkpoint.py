"""Checkpoints: a folder with ``config.json`` and ``model.safetensors``. Nothing in it is executed when it is read."""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module, resources
from pathlib import Path
from typing import Any, Generic, TypeVar

import safetensors
import torch
from safetensors.torch import load_file, save_file

from learning.network import Network
from simeval.errors import ConfigError, unknown

N = TypeVar("N", bound=Network)


@dataclass(frozen=True)
class Checkpoints(Generic[N]):
    """The checkpoints of one sort of network, ``what``, e.g. ``"policy"``.

    ``form``: name and version of the format; ``modules``: kind of network -> the module that defines it (a checkpoint
    can ask for no other code); ``shipped``: the folder of ``assets`` that has some; ``build``: class, config -> it.
    """

    what: str
    form: str
    modules: Mapping[str, str]
    shipped: str
    build: Callable[[type[N], Mapping[str, Any]], N]
    registered: dict[str, type[N]] = field(default_factory=dict)

    def register(self, network: type[N]) -> type[N]:
        """Let checkpoints name this class by its ``kind``; a decorator."""
        self.registered[network.kind] = network
        return network

    def network_class(self, kind: str) -> type[N]:
        """The registered class of a kind."""
        if kind not in self.registered and kind in self.modules:
            import_module(self.modules[kind])
        if kind not in self.registered:
            raise unknown(f"kind of {self.what}", kind, {*self.modules, *self.registered})
        return self.registered[kind]

    def save(self, folder: Path, network: N, origin: Mapping[str, Any], stored: str = "float32") -> None:
        """Write a checkpoint; ``origin`` (JSON data) says how it was made. An existing one is replaced as a whole.

        ``stored``: the type of the weights on disk, float32 or float16 (half the size); statistics keep theirs.
        """
        if problem := network.problem():
            raise ConfigError(f"this network cannot be saved: {problem}; fit its statistics first")
        folder.mkdir(parents=True, exist_ok=True)
        config = {
            "format": self.form,
            "kind": network.kind,
            "settings": dict(network.settings),
            **network.description(),
            "origin": dict(origin),
        }
        weights = {name: value.detach().cpu().contiguous() for name, value in network.state_dict().items()}
        if checked(stored) == "float16":
            weights |= {name: weights[name].half() for name, _ in network.named_parameters()}
        save_file(weights, folder / "model.safetensors.tmp")
        (folder / "config.json.tmp").write_text(json.dumps(config, indent=1) + "\n")
        for name in ("model.safetensors", "config.json"):
            os.replace(folder / f"{name}.tmp", folder / name)

    def located(self, place: str | Path) -> Path:
        """The folder of a checkpoint: ``place`` itself, or the one that is shipped under that name."""
        folder = Path(place)
        if (folder / "config.json").is_file():
            return folder
        root = Path(str(resources.files("assets"))) / self.shipped
        shipped = {path.parent.name: path.parent for path in sorted(root.glob("*/config.json"))}
        if str(place) in shipped:
            return shipped[str(place)]
        raise ConfigError(
            f"{folder} is no checkpoint (it has no config.json); `simeval train` writes one, and these are shipped: "
            f"{', '.join(shipped) or 'none'}"
        )

    def load(self, place: str | Path) -> N:
        """The network of a checkpoint, in evaluation mode on the CPU; ``ConfigError`` says what does not fit."""
        folder = self.located(place)
        config = self._config(folder / "config.json")
        try:
            network = self.build(self.network_class(str(config["kind"])), config)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(
                f"{folder / 'config.json'} describes no {self.what} that can be built ({error!r})"
            ) from None
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

    def _config(self, path: Path) -> Mapping[str, Any]:
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ConfigError(f"{path} cannot be read ({error}); the checkpoint was altered") from None
        if not isinstance(config, dict) or config.get("format") != self.form:
            raise ConfigError(f"{path} is no {self.form} checkpoint; `simeval train` writes one")
        return config


def checked(stored: str) -> str:
    """The type of weights on disk, float32 or float16; ``ConfigError`` for another."""
    if stored not in ("float32", "float16"):
        raise ConfigError(f"stored must be float32 or float16; received {stored!r}")
    return stored


def content_hash(folder: Path) -> str:
    """16 hex digits of a checkpoint's content."""
    digest = hashlib.blake2b(digest_size=8)
    for name in ("config.json", "model.safetensors"):
        digest.update((folder / name).read_bytes())
    return digest.hexdigest()


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
