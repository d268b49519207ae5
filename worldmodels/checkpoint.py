"""Checkpoints of world models (see ``learning.checkpoint``), and beside them the starts that were held out."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from safetensors.numpy import load_file, save_file

from learning.checkpoint import Checkpoints
from simeval.errors import ConfigError
from simeval.types import Start
from worldmodels.interface import NUMBERS, Beginnings, Interface
from worldmodels.model import WorldModel


def _build(network: type[WorldModel], config: Mapping[str, Any]) -> WorldModel:
    return network(Interface.from_json(config["interface"]), **config["settings"])


CHECKPOINTS: Checkpoints[WorldModel] = Checkpoints(
    what="world model",
    form="simeval-worldmodel/1",
    modules={kind: f"worldmodels.{kind}" for kind in ("ensemble", "latent", "recurrent")},
    shipped="worldmodels",
    build=_build,
)
_STARTS = "starts.json"
_SEEN = "starts.safetensors"


def save_beginnings(folder: Path, beginnings: Beginnings) -> None:
    """Write where imagined episodes may begin into a checkpoint's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: np.ascontiguousarray(array) for name, array in beginnings.seen.items()}, folder / _SEEN)
    (folder / _STARTS).write_text(json.dumps([start.to_json() for start in beginnings.starts]) + "\n")


def load_beginnings(folder: Path, interface: Interface) -> Beginnings:
    """Where imagined episodes may begin; ``ConfigError`` for a damaged file."""
    try:
        seen = load_file(folder / _SEEN)
        starts = tuple(Start.from_json(data) for data in json.loads((folder / _STARTS).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, safetensors.SafetensorError) as error:
        raise ConfigError(f"the starts in {folder} cannot be read ({error!r}); the checkpoint is damaged") from None
    expected = {NUMBERS: (interface.number_dim,), **{key: space.shape for key, space in interface.pictures.items()}}
    shapes = {name: array.shape for name, array in seen.items()}
    if shapes != {name: (len(starts), *shape) for name, shape in expected.items()}:
        raise ConfigError(
            f"{folder} has {len(starts)} starts, and of them {shapes} for observations of {expected}; it is damaged"
        )
    return Beginnings(starts, seen)
