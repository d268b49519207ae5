"""A trained network as a model of chunks: keys become noise, fixed batches become predictions."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from learning.devices import device_named, thread_count
from policies.chunked import ChunkModel, Prediction
from policies.learned import checkpoint
from policies.learned.features import Inputs, channels_first, stacked_numbers
from policies.learned.network import ChunkNetwork
from simeval.errors import ConfigError
from simeval.noise import StepKey, standard_normal
from simeval.provenance import cores
from simeval.settings import finite, whole
from simeval.types import Observation, WorldSpec


class NetworkChunks(ChunkModel):
    """The chunk model of a checkpoint.

    ``threads``: threads of torch on the CPU, on which low bits depend, so it is part of the fingerprint. ``samples``:
    chunks drawn per observation; the first is executed, and the others give ``disagreement``, the standard deviation
    over samples of an action, averaged over the chunk, in units of the demonstrations' standard deviation.
    ``temperature`` scales the noise: at 0 a flow goes to the middle of what it could have drawn. A network with
    densities states them for temperature 1, and takes no other.
    """

    def __init__(
        self,
        folder: str | Path,
        device: str = "cpu",
        threads: int = 1,
        samples: int = 1,
        compile: bool = False,
        temperature: float = 1.0,
    ):
        self._folder = checkpoint.located(folder)
        self._network: ChunkNetwork = checkpoint.load(self._folder)
        self.device = device_named(device)
        self._threads = thread_count(threads)
        self._samples = whole("samples", samples)
        if temperature != 1 and self._network.has_density:
            raise ConfigError(f"{folder} has densities, which are those of temperature 1; received {temperature!r}")
        self._temperature = finite("temperature", temperature)
        self._network.to(self.device)
        self._predict: Any = torch.compile(self._network.predict) if compile else self._network.predict
        features = self._network.features
        self.horizon, self.action_dim = features.horizon, features.action_dim
        self.observation_keys = features.observation_keys
        self.has_density = self._network.has_density
        self.conventions = features.declared()
        self.extras = {"disagreement": ()} if samples > 1 else {}
        if self.device.type == "cpu" and not compile:
            self.concurrent = max(1, cores() // self._threads)
        place = f"cpu threads={threads}" if self.device.type == "cpu" else f"{self.device.type} bf16"
        self.fingerprint = (
            f"{self._network.kind} {checkpoint.content_hash(self._folder)} {place} samples={samples} "
            f"temperature={self._temperature:g} torch={torch.__version__}" + (" compiled" if compile else "")
        )

    def check(self, spec: WorldSpec) -> None:
        """Raise ``ConfigError`` where the World gives something else than the network was trained on."""
        self._network.features.check(spec)

    @torch.no_grad()
    def predict(self, observation: Observation, instruction: Sequence[str], keys: Sequence[StepKey]) -> Prediction:
        """See ``ChunkModel.predict``."""
        network = self._network
        inputs = Inputs(
            {key: channels_first(np.asarray(observation[key])) for key in network.features.images},
            stacked_numbers(network.features, observation),
            network.vocabulary.encode(instruction),
        ).to(self.device)
        noise = torch.from_numpy(
            standard_normal(keys, (self._samples, *network.noise_shape), "chunk").astype(np.float32)
        ).to(self.device)
        noise = self._temperature * noise
        torch.set_num_threads(self._threads)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            drawn = [self._predict(inputs, noise[:, sample]) for sample in range(self._samples)]
        extras = {}
        if self._samples > 1:
            spread = torch.stack([each.chunk for each in drawn]).std(0) / network.action_statistics.scale
            extras["disagreement"] = _array(spread.mean((1, 2)))
        first = drawn[0]
        log_prob, entropy = (None if part is None else _array(part) for part in (first.log_prob, first.entropy))
        return Prediction(_array(first.chunk), log_prob, entropy, extras)


def _array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.float().cpu().numpy()
