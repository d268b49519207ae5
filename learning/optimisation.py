"""A training: a network, batches and a loss, resumable at any step with the same result."""

import copy
import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from learning.checkpoint import Checkpoints
from learning.devices import half_precision
from learning.episodes import EpisodeData
from learning.network import Network
from simeval.declared import check_declared
from simeval.errors import ConfigError, DivergedError
from simeval.noise import Key
from simeval.settings import finite, positive, seed, share, whole
from simeval.training import Log
from simeval.types import content_hash

N = TypeVar("N", bound=Network)
B = TypeVar("B")
R = TypeVar("R", bound="Recipe")
_LAST = "last"


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a network is trained. ``learning_rate`` is the peak of a cosine after ``warmup`` steps.

    ``clip``: the largest norm of a gradient; ``ema``: the decay of the averaged weights, which are saved and used.
    ``validate_every`` and ``save_every`` count steps.
    """

    steps: int
    batch_size: int = 64
    learning_rate: float = 1e-3
    warmup: int = 200
    weight_decay: float = 1e-3
    clip: float = 1.0
    ema: float = 0.999
    validate_every: int = 500
    save_every: int = 500
    seed: int = 0

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """The recipe of a configuration; ``ConfigError`` for what cannot be followed, and by name."""
        check_declared(cls, settings, "recipe.")
        recipe = cls(**settings)
        for name in ("steps", "batch_size", "validate_every", "save_every"):
            whole(f"recipe.{name}", getattr(recipe, name))
        whole("recipe.warmup", recipe.warmup, 0)
        for name in ("learning_rate", "clip"):
            positive(f"recipe.{name}", getattr(recipe, name))
        finite("recipe.weight_decay", recipe.weight_decay)
        share("recipe.ema", recipe.ema)
        seed("recipe.seed", recipe.seed)
        return recipe


class Training(ABC, Generic[N, R, B]):
    """A training in ``folder``: ``last/`` is where it stands, the folder itself holds the averaged network."""

    def __init__(
        self,
        network: N,
        recipe: R,
        folder: Path,
        checkpoints: Checkpoints[N],
        device: str | torch.device = "cpu",
        stored: str = "float32",
    ):
        self.network = network
        self.recipe = recipe
        self.folder = folder
        self.step = 0
        self.average = copy.deepcopy(network)
        self._checkpoints = checkpoints
        self._device = torch.device(device)
        self._stored = stored
        decayed = [p for p in network.parameters() if p.ndim > 1]
        others = [p for p in network.parameters() if p.ndim <= 1]
        self._optimiser = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": others, "weight_decay": 0.0}],
            lr=recipe.learning_rate,
            betas=(0.9, 0.95),
        )

    data: EpisodeData[Any, B]

    @abstractmethod
    def fit_statistics(self) -> None:
        """Take the statistics of the training data, in the network and its average."""

    @abstractmethod
    def batches(self, begin: int) -> Iterator[B]:
        """Training batches from the ``begin``-th on, a function of their place."""

    @abstractmethod
    def loss(self, batch: B, generator: torch.Generator) -> torch.Tensor:
        """The loss of a batch, on the device; draws come from ``generator``."""

    @abstractmethod
    def validation(self) -> Mapping[str, float]:
        """What is measured of the averaged network on episodes that are never trained on."""

    @abstractmethod
    def origin(self) -> dict[str, Any]:
        """How the network was made, for its checkpoint (JSON data), beside recipe and step."""

    def finish(self) -> None:
        """What is left to do to the averaged network before it is saved."""

    def run(
        self, log: Log, steps: int | None = None, judge: Callable[[Path], Mapping[str, float]] | None = None
    ) -> None:
        """Train to the recipe's last step, or for ``steps`` more; ``judge`` is given every saved checkpoint."""
        recipe, until = self.recipe, self.recipe.steps if steps is None else min(self.step + steps, self.recipe.steps)
        if self.step == 0:
            self.fit_statistics()
        batches = self.batches(self.step)
        began, losses = time.perf_counter(), []
        first = self.step + 1
        while self.step < until:
            losses.append(self.advance(next(batches)))
            self.step += 1
            ending = self.step == until
            if self.step % 50 == 0 or self.step == first or ending:
                seconds = time.perf_counter() - began
                log(self.step, {"loss": math.fsum(losses) / len(losses), "steps_per_s": len(losses) / seconds})
                began, losses = time.perf_counter(), []
            if self.step % recipe.validate_every == 0 or ending:
                log(self.step, self.validation())
                began = time.perf_counter()
            if self.step % recipe.save_every == 0 or ending:
                self.save()
                if judge is not None:
                    log(self.step, judge(self.folder))
                began = time.perf_counter()

    def advance(self, batch: B) -> float:
        """One step on a batch; returns the loss. ``DivergedError`` if that is not finite."""
        recipe = self.recipe
        for group in self._optimiser.param_groups:
            group["lr"] = recipe.learning_rate * schedule(self.step, recipe.warmup, recipe.steps)
        generator = torch.Generator(self._device).manual_seed(Key(recipe.seed).integer("step", self.step))
        self.network.train()
        with torch.autocast(self._device.type, torch.bfloat16, enabled=half_precision(self._device)):
            loss = self.loss(batch, generator)
        self._optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), recipe.clip)
        self._optimiser.step()
        decay = min(recipe.ema, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            own = self.network.state_dict()
            for name, value in self.average.state_dict().items():
                if value.is_floating_point():
                    value.lerp_(own[name], 1 - decay)
                else:
                    value.copy_(own[name])
        value = float(loss.detach())
        if not math.isfinite(value):
            raise DivergedError(
                f"the loss is {value} at step {self.step}; lower learning_rate (it is {recipe.learning_rate:g})"
            )
        return value

    # Saving and going on

    def save(self) -> None:
        """Save the averaged network, and where the training stands."""
        self.finish()
        origin = {"recipe": asdict(self.recipe), "step": self.step, **self.origin()}
        self._checkpoints.save(self.folder, self.average, origin, self._stored)
        last = self.folder / _LAST
        last.mkdir(exist_ok=True)
        tensors = {f"network/{name}": value for name, value in self.network.state_dict().items()}
        tensors |= {f"average/{name}": value for name, value in self.average.state_dict().items()}
        for index, state in self._optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser/{index}/{name}": torch.as_tensor(value) for name, value in state.items()}
        stored = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
        save_file(stored, last / "training.tmp", metadata={"step": str(self.step), "training": self._identity()})
        (last / "training.tmp").replace(last / "training.safetensors")

    def resume(self) -> None:
        """Go on where the training in ``folder`` was last saved; ``ConfigError`` if it is another training.

        One that was killed before it was ever saved begins anew.
        """
        path = self.folder / _LAST / "training.safetensors"
        if self.folder.is_dir() and not path.parent.exists():
            return
        if not path.exists():
            raise ConfigError(f"there is no training to go on with in {self.folder}")
        try:
            with safe_open(path, framework="pt") as file:
                metadata: Mapping[str, str] = file.metadata()
            tensors = load_file(path, device=str(self._device))
        except SafetensorError as error:
            raise ConfigError(f"{path} cannot be read ({error}); it is damaged: train anew in another dir") from None
        if metadata["training"] != self._identity():
            raise ConfigError(
                f"{self.folder} holds another training ({metadata['training']}); this one is {self._identity()}"
            )
        for prefix, network in (("network/", self.network), ("average/", self.average)):
            network.load_state_dict(
                {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
            )
        state: dict[int, dict[str, Any]] = {}
        for name, value in tensors.items():
            if name.startswith("optimiser/"):
                _, index, entry = name.split("/")
                state.setdefault(int(index), {})[entry] = value.cpu() if entry == "step" else value
        self._optimiser.load_state_dict({**self._optimiser.state_dict(), "state": state})
        self.step = int(metadata["step"])

    def _identity(self) -> str:
        recipe = asdict(self.recipe)
        del recipe["save_every"], recipe["validate_every"]
        said = {"kind": self.network.kind, "settings": dict(self.network.settings), "recipe": recipe}
        read = {"data": self.data.identity, "read": content_hash(self.network.description())}
        return json.dumps({**said, **read})


def schedule(step: int, warmup: int, steps: int) -> float:
    """A linear rise over ``warmup`` steps and a cosine down to a hundredth at the last, as a factor."""
    rise = min(1.0, (step + 1) / max(1, warmup))
    fall = 0.5 * (1 + math.cos(math.pi * min(1.0, step / max(1, steps))))
    return rise * max(0.01, fall)
