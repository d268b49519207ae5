"""Policies that LeRobot has trained: its folders and hub repositories, with their own processors, made stateless.

LeRobot's policies keep queues of observations and actions inside. Here a chunk is a function of the observations (their
``predict_action_chunk``), what is left of it lives in the policy's memory, and noise comes from keys. Needs ``lerobot``
(0.4.4), in this interpreter or in one of its own (``policy.host.python``; docs/lerobot.md).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from policies.chunked import Chunked, ChunkModel, Ensembled, Prediction
from policies.clipped import Clipped
from policies.history import History
from policies.lerobot_folder import QUEUED, RESIZING, load
from policies.torch_noise import keyed_noise
from simeval.errors import ConfigError
from simeval.noise import Key, StepKey
from simeval.policy import Policy
from simeval.settings import names, whole
from simeval.types import Observation, WorldSpec

_IMAGES = "observation.images."
_USUAL = {"observation.state": "proprio", "observation.environment_state": "state"}


def lerobot_policy(
    checkpoint: str,
    observation: Mapping[str, str | Sequence[str]] | None = None,
    execute: int | None = None,
    batch_size: int = 16,
    device: str = "auto",
    threads: int = 1,
    revision: str | None = None,
) -> Policy:
    """A policy that LeRobot has trained, of a type in ``lerobot_folder.TYPES``.

    ``checkpoint``: a folder with ``config.json``, ``model.safetensors`` and the processors
    (``…/checkpoints/last/pretrained_model``), or a hub repository ``owner/name`` at ``revision``. ``execute``: how many
    actions of each chunk are executed; by default as the checkpoint says, its temporal ensembling included.
    ``batch_size`` rows are always sent together (padded): 1, 2 or a multiple of 4, as at others the low bits of what
    LeRobot's diffusion policy says of a row depend on its place in the batch. Actions that leave the space are clipped
    to it. See ``LeRobotChunks`` for the rest.
    """
    if whole("batch_size", batch_size) > 2 and batch_size % 4:
        raise ConfigError(
            f"batch_size is 1, 2 or a multiple of 4; received {batch_size}, at which low bits of an action may "
            "depend on its place in the batch"
        )
    model = LeRobotChunks(checkpoint, observation or {}, device, threads, revision)
    chunks: Policy
    if execute is None and model.ensembling is not None:
        chunks = Ensembled(model, batch_size, model.ensembling)
    else:
        chunks = Chunked(model, model.execute if execute is None else execute, batch_size)
    return Clipped(History(chunks, model.steps) if model.steps > 1 else chunks)


class LeRobotChunks(ChunkModel):
    """The chunk model of a LeRobot policy; it reads ``steps`` observations, [n, steps, …] where that is more than one.

    ``observation``: LeRobot's feature -> the World's observation that it comes from, or several, which are joined; by
    default ``observation.state`` from ``proprio``, ``observation.images.<camera>`` from ``image_<camera>`` and
    ``observation.environment_state`` from ``state``. ``execute`` and ``ensembling``: how many actions of a chunk the
    checkpoint has executed, and the decay of its temporal ensembling, if it has that. ``threads`` of torch on the CPU,
    on which low bits depend, are part of the fingerprint. Raises what ``lerobot_folder.load`` raises.
    """

    def __init__(
        self,
        checkpoint: str,
        observation: Mapping[str, str | Sequence[str]],
        device: str = "cpu",
        threads: int = 1,
        revision: str | None = None,
    ):
        self._loaded = load(checkpoint, device, revision)
        self._threads = whole("threads", threads)
        config = self._loaded.config
        self.steps: int = config.n_obs_steps
        self.ensembling: float | None = getattr(config, "temporal_ensemble_coeff", None)
        self._sources = _sources(config.input_features, observation)
        self.observation_keys = tuple(dict.fromkeys(key for keys in self._sources.values() for key in keys))
        chunk = self._probe()
        if not np.isfinite(chunk).all():
            raise ConfigError(f"{checkpoint}: its actions are not finite; weights or statistics are damaged")
        self.horizon, self.action_dim = chunk.shape
        self.execute = min(getattr(config, "n_action_steps", self.horizon), self.horizon)
        place = f"cpu threads={threads}" if self._loaded.device == "cpu" else self._loaded.device
        sources = " ".join(f"{feature}={'+'.join(keys)}" for feature, keys in self._sources.items())
        self.fingerprint = f"LeRobot {self._loaded.identity} {place} {sources}"

    def check(self, spec: WorldSpec) -> None:
        """Raise ``ConfigError`` where the World gives something else than the policy was trained on."""
        super().check(spec)
        spaces = spec.observation_space.spaces
        for feature, keys in self._sources.items():
            missing = [key for key in keys if key not in spaces]
            if missing:
                raise ConfigError(
                    f"the policy reads {feature} from {missing[0]!r}, which world {spec.name!r} does not give; it "
                    f"gives {', '.join(spaces)}: name another with 'policy.observation={{{feature}: …}}'"
                )
            expected = list(self._loaded.config.input_features[feature].shape)
            shapes = [tuple(spaces[key].shape or ()) for key in keys]
            if _is_image(feature):
                given = [shapes[0][-1], *shapes[0][:-1]]
                fits = given == expected or self._loaded.kind in RESIZING
            else:
                given = [sum(math.prod(shape) for shape in shapes)]
                fits = given == expected
            if not fits:
                raise ConfigError(
                    f"the policy was trained on {feature} of shape {expected}; world {spec.name!r} gives {given} "
                    f"({', '.join(keys)}): change the World's cameras or image_size, or policy.observation"
                )

    def predict(self, observation: Observation, instruction: Sequence[str], keys: Sequence[StepKey]) -> Prediction:
        """See ``ChunkModel.predict``."""
        batch = {feature: self._tensor(feature, observation) for feature in self._sources}
        return Prediction(self._chunk(batch, instruction, keys))

    def _tensor(self, feature: str, observation: Observation) -> torch.Tensor:
        """A feature as LeRobot has it: images [n, (steps,) 3, H, W] in [0, 1], numbers [n, (steps,) D], float32."""
        arrays = [np.asarray(observation[key]) for key in self._sources[feature]]
        if _is_image(feature):
            pixels = torch.from_numpy(np.ascontiguousarray(np.moveaxis(arrays[0], -1, -3)))
            return pixels.to(torch.float32) / 255
        leading = 2 if self.steps > 1 else 1
        flat = [array.reshape(*array.shape[:leading], -1).astype(np.float32) for array in arrays]
        return torch.from_numpy(np.concatenate(flat, axis=-1))

    @torch.no_grad()
    def _chunk(
        self, batch: Mapping[str, torch.Tensor], instruction: Sequence[str], keys: Sequence[StepKey]
    ) -> np.ndarray:
        """Actions [n, H, A], unnormalised."""
        policy = self._loaded.policy
        torch.set_num_threads(self._threads)
        with keyed_noise(keys):
            policy.reset()
            ready = self._loaded.before({**batch, "task": list(instruction)})
            inputs = {name: value for name, value in ready.items() if name.startswith("observation.")}
            if self._loaded.kind in QUEUED:
                self._fill_queues(inputs)
            chunk = policy.predict_action_chunk(inputs)
            actions = self._loaded.after(chunk.flatten(0, 1))
        return actions.unflatten(0, chunk.shape[:2]).float().cpu().numpy()

    def _fill_queues(self, inputs: dict[str, torch.Tensor]) -> None:
        """Do for all ``steps`` observations what ``select_action`` does for one, without its prediction."""
        cameras = self._loaded.config.image_features
        if cameras:
            inputs["observation.images"] = torch.stack([inputs[camera] for camera in cameras], dim=-4)
        for name, queue in self._loaded.policy._queues.items():
            if name in inputs:
                queue.extend(inputs[name].unbind(1) if self.steps > 1 else [inputs[name]])

    def _probe(self) -> np.ndarray:
        """The chunk [H, A] for observations of zeros."""
        leading = (1, self.steps) if self.steps > 1 else (1,)
        features = self._loaded.config.input_features
        blank = {feature: torch.zeros((*leading, *features[feature].shape)) for feature in self._sources}
        return self._chunk(blank, [""], [Key(0).stream("probe").key(0)])[0]


def _is_image(feature: str) -> bool:
    return feature.startswith("observation.image")


def _sources(features: Mapping[str, Any], observation: Mapping[str, str | Sequence[str]]) -> dict[str, tuple[str, ...]]:
    for feature in observation:
        if feature not in features:
            raise ConfigError(f"observation: the policy reads no {feature!r}; it reads {', '.join(features)}")
    return {
        feature: names("observation", observation[feature]) if feature in observation else _usual(feature)
        for feature in features
    }


def _usual(feature: str) -> tuple[str, ...]:
    if feature.startswith(_IMAGES):
        return (f"image_{feature.removeprefix(_IMAGES)}",)
    if feature not in _USUAL:
        raise ConfigError(
            f"the policy reads {feature}; say from which observation with 'policy.observation={{{feature}: …}}'"
        )
    return (_USUAL[feature],)
