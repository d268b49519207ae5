"""Loading a folder that LeRobot wrote: everything that a file names is looked at first, and nothing may be missing."""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from simeval.errors import ConfigError, MissingPackageError, UnsupportedError

QUEUED = ("diffusion", "vqbet")
"""Types whose ``predict_action_chunk`` reads the observations from queues that ``select_action`` fills."""
RESIZING = ("smolvla", "pi0", "pi05", "pi0_fast", "xvla")
"""Types that bring images of any size to their own."""
TYPES = ("act", *QUEUED, *RESIZING)
"""Types of policies that can be run without anything kept inside them."""

_STATISTICS = {
    "MEAN_STD": ("mean", "std"),
    "MIN_MAX": ("min", "max"),
    "QUANTILES": ("q01", "q99"),
    "QUANTILE10": ("q10", "q90"),
}
"""Normalisation -> the statistics that it needs."""
_BEFORE, _AFTER = "policy_preprocessor.json", "policy_postprocessor.json"
_REPOSITORY = re.compile(r"[-_.\w]+/[-_.\w]+")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A policy with its processors, as LeRobot's own objects; ``identity``: content and versions, in one line."""

    kind: str
    config: Any
    policy: Any
    before: Any
    after: Any
    device: str
    identity: str


def load(checkpoint: str, device: str = "auto", revision: str | None = None) -> Loaded:
    """The policy in a folder, or in the hub repository ``owner/name`` at ``revision``, on ``device``.

    Raises ``MissingPackageError`` without lerobot, ``UnsupportedError`` for a type that is not in ``TYPES``, and
    ``ConfigError`` for a folder that is not whole: weights that do not fit, statistics that are missing (LeRobot passes
    over these) or not finite, classes to import.
    """
    version = _lerobot_version()
    folder = _folder(checkpoint, revision)
    kind = _checked_kind(folder)
    place = _device(device)
    config, policy = _load_policy(folder, kind, place)
    before, after = _load_processors(folder, config, place)
    _check_statistics(folder, config, before, after)
    identity = f"{kind} {_content_hash(folder)} lerobot={version} torch={torch.__version__}"
    return Loaded(kind, config, policy, before, after, place, identity)


def _lerobot_version() -> str:
    try:
        import lerobot
        import lerobot.policies.factory
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            f"{error.name}, which LeRobot's policies need,",
            "lerobot==0.4.4 (or let the policy run in an interpreter that has it, which `make lerobot` makes: "
            "policy.host.python=.venv-lerobot/bin/python)",
        ) from error
    return str(lerobot.__version__)


def _folder(checkpoint: str, revision: str | None) -> Path:
    folder = Path(checkpoint).expanduser()
    if (folder / "config.json").is_file():
        return folder
    if folder.is_dir():
        inside = folder / "checkpoints" / "last" / "pretrained_model"
        hint = f"; did you mean {inside}?" if inside.is_dir() else ""
        raise ConfigError(f"{folder} is no LeRobot policy: it has no config.json{hint}")
    if not _REPOSITORY.fullmatch(checkpoint):
        raise ConfigError(f"{checkpoint} is neither a folder nor a hub repository (owner/name)")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(checkpoint, revision=revision, allow_patterns=["*.json", "*.safetensors"]))
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{checkpoint} is no folder here, and the hub does not give it: {reason}") from error


def _checked_kind(folder: Path) -> str:
    """The type of the policy, once it is known that its files name nothing but what LeRobot has registered."""
    kind = str(_json(folder / "config.json").get("type"))
    if kind not in TYPES:
        raise UnsupportedError(
            f"{folder} is a LeRobot policy of type {kind!r}, which keeps a state of its own, or loads code; available: "
            f"{', '.join(TYPES)}"
        )
    for name in (_BEFORE, _AFTER):
        if not (folder / name).is_file():
            raise ConfigError(
                f"{folder} has no {name}: the statistics that it was trained with are missing, or in an older form; "
                "convert it with python -m lerobot.processor.migrate_policy_normalization"
            )
        for step in _json(folder / name).get("steps", ()):
            if "registry_name" not in step:
                raise ConfigError(f"{folder / name} names a class to import, {step.get('class')}; none is")
    return kind


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds {type(content).__name__}, expected a mapping")
    return content


def _device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(f"device={name}, but torch {torch.__version__} finds no CUDA device; use cpu or auto")
    return name


def _load_policy(folder: Path, kind: str, device: str) -> tuple[Any, Any]:
    from lerobot.configs.policies import PreTrainedConfig
    from lerobot.policies.factory import get_policy_class

    config: Any = PreTrainedConfig.from_pretrained(folder)
    config.device = device
    if getattr(config, "pretrained_backbone_weights", None) is not None:
        config.pretrained_backbone_weights = None  # they are in the checkpoint: no need to fetch them
    try:
        policy = get_policy_class(kind).from_pretrained(folder, config=config, strict=True)
    except RuntimeError as error:
        raise ConfigError(f"{folder}: weights do not fit config.json: {' '.join(str(error).split())}") from error
    return config, policy.eval()


def _load_processors(folder: Path, config: Any, device: str) -> tuple[Any, Any]:
    from lerobot.policies.factory import make_pre_post_processors

    wanted = {
        "device_processor": {"device": device},
        "rename_observations_processor": {"rename_map": {}},  # they are given the policy's own names already
    }
    steps = {step["registry_name"] for step in _json(folder / _BEFORE).get("steps", ())}
    overrides = {name: setting for name, setting in wanted.items() if name in steps}
    return make_pre_post_processors(config, pretrained_path=str(folder), preprocessor_overrides=overrides)


def _check_statistics(folder: Path, config: Any, before: Any, after: Any) -> None:
    for pipeline, features in ((before, config.input_features), (after, config.output_features)):
        found = {name: value for step in pipeline.steps for name, value in step.state_dict().items()}
        for feature, declared in features.items():
            mode = config.normalization_mapping.get(declared.type.value)
            for statistic in _STATISTICS.get(mode.value, ()) if mode is not None else ():
                value = found.get(f"{feature}.{statistic}")
                if value is None or not bool(value.isfinite().all()):
                    problem = "missing" if value is None else "not finite"
                    raise ConfigError(f"{folder}: {statistic} of {feature} is {problem}; {mode.value} needs it")


def _content_hash(folder: Path) -> str:
    """20 hex digits of all that the actions depend on."""
    digest = hashlib.blake2b(digest_size=10)
    for path in sorted(folder.iterdir()):
        if path.suffix in (".json", ".safetensors") and path.name != "train_config.json":
            digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
            with path.open("rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
    return digest.hexdigest()
