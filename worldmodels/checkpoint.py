"""Checkpoints of world models (see ``learning.checkpoint``), and beside them the starts that were held out."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
from safetensors.numpy import load_file, save_file

from learning.checkpoint import Checkpoints
from simeval.errors import ConfigError
from simeval.types import Start
from worldmodels.interface import Beginnings, Interface
from worldmodels.model import WorldModel


def _build(network: type[WorldModel], config: Mapping[str, Any]) -> WorldModel:
    return network(Interface.from_json(config["interface"]), **config["settings"])


CHECKPOINTS: Checkpoints[WorldModel] = Checkpoints(
    what="world model",
    form="simeval-worldmodel/1",
    modules={"ensemble": "worldmodels.ensemble"},
    shipped="worldmodels",
    build=_build,
)
_STARTS = "starts.json"
_NUMBERS = "starts.safetensors"


def save_beginnings(folder: Path, beginnings: Beginnings) -> None:
    """Write where imagined episodes may begin into a checkpoint's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({"numbers": beginnings.numbers}, folder / _NUMBERS)
    (folder / _STARTS).write_text(json.dumps([start.to_json() for start in beginnings.starts]) + "\n")


def load_beginnings(folder: Path) -> Beginnings:
    """Where imagined episodes may begin; ``ConfigError`` for a damaged file."""
    try:
        numbers = load_file(folder / _NUMBERS)["numbers"]
        starts = tuple(Start.from_json(data) for data in json.loads((folder / _STARTS).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, safetensors.SafetensorError) as error:
        raise ConfigError(f"the starts in {folder} cannot be read ({error!r}); the checkpoint is damaged") from None
    if numbers.ndim != 2 or len(numbers) != len(starts):
        raise ConfigError(f"{folder} has {len(starts)} starts and numbers {list(numbers.shape)}; it is damaged")
    return Beginnings(starts, numbers)
