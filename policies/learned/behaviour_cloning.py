"""Behaviour cloning: a chunk network trained on recorded episodes, resumable at any step."""

import copy
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from policies.learned import checkpoint
from policies.learned.demonstrations import Demonstrations
from policies.learned.features import Batch, Inputs
from policies.learned.network import ChunkNetwork
from policies.learned.words import PADDING, UNKNOWN
from simeval.errors import ConfigError
from simeval.noise import Key
from simeval.training import Log

_LAST = "last"


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a network is trained. ``learning_rate`` is the peak of a cosine after ``warmup`` steps.

    ``shift``: images are moved by up to so many pixels (Kostrikov et al. 2020), each batch by its own draw. ``ema``:
    the decay of the averaged weights, which are saved and used. ``hide_numbers``: the share of rows whose vectors
    are hidden (their mean is shown), so that the policy looks at pictures and sentence instead of going on as it moves
    (copycats: de Haan et al. 2019); ``hide_words``: the share of words that are replaced by an unknown one, so that
    the policy can bear such. ``validate_every`` and ``save_every`` count steps.
    """

    steps: int
    batch_size: int = 64
    learning_rate: float = 1e-3
    warmup: int = 200
    weight_decay: float = 1e-3
    clip: float = 1.0
    ema: float = 0.999
    shift: int = 4
    hide_numbers: float = 0.0
    hide_words: float = 0.0
    validate_every: int = 500
    save_every: int = 500
    seed: int = 0


class BehaviourCloning:
    """A training in ``folder``: ``last/`` is where it stands, the folder itself holds the averaged network."""

    def __init__(
        self,
        network: ChunkNetwork,
        data: Demonstrations,
        recipe: Recipe,
        folder: Path,
        device: str | torch.device = "cpu",
        stored: str = "float32",
    ):
        channels_last: Any = network.to(device)
        self.network: ChunkNetwork = channels_last.to(memory_format=torch.channels_last)
        self.data = data
        self.recipe = recipe
        self.folder = folder
        self.step = 0
        self._device = torch.device(device)
        self._stored = stored
        self._average = copy.deepcopy(network)
        decayed = [p for p in network.parameters() if p.ndim > 1]
        others = [p for p in network.parameters() if p.ndim <= 1]
        self._optimiser = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": others, "weight_decay": 0.0}],
            lr=recipe.learning_rate,
            betas=(0.9, 0.95),
        )

    def fit_statistics(self) -> None:
        """Take the statistics of the training episodes."""
        numbers, actions = self.data.moments()
        for network in (self.network, self._average):
            network.number_statistics.fit(numbers)
            network.action_statistics.fit(actions)

    def run(
        self, log: Log, steps: int | None = None, judge: Callable[[Path], Mapping[str, float]] | None = None
    ) -> None:
        """Train to the recipe's last step, or for ``steps`` more; ``judge`` is given every saved checkpoint."""
        recipe, until = self.recipe, self.recipe.steps if steps is None else min(self.step + steps, self.recipe.steps)
        if self.step == 0:
            self.fit_statistics()
        batches: Iterator[Batch] = self.data.batches(recipe.batch_size, self.step)
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
                log(self.step, {"validation_error": self.validation_error()})
                began = time.perf_counter()
            if self.step % recipe.save_every == 0 or ending:
                self.save()
                if judge is not None:
                    log(self.step, judge(self.folder))
                began = time.perf_counter()

    def advance(self, batch: Batch) -> float:
        """One step on a batch; returns the loss. ``FloatingPointError`` if that is not finite."""
        recipe = self.recipe
        for group in self._optimiser.param_groups:
            group["lr"] = recipe.learning_rate * schedule(self.step, recipe.warmup, recipe.steps)
        generator = torch.Generator(self._device).manual_seed(Key(recipe.seed).integer("step", self.step))
        batch = batch.to(self._device)
        batch = replace(batch, inputs=self._hidden(_shifted(batch.inputs, recipe.shift, generator), generator))
        with torch.autocast(self._device.type, torch.bfloat16, enabled=half_precision(self._device)):
            loss = self.network.train().loss(batch, generator)
        self._optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), recipe.clip)
        self._optimiser.step()
        decay = min(recipe.ema, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            own = self.network.state_dict()
            for name, value in self._average.state_dict().items():
                value.lerp_(own[name], 1 - decay)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise FloatingPointError(
                f"the loss is {value} at step {self.step}; lower learning_rate (it is {recipe.learning_rate:g})"
            )
        return value

    def _hidden(self, inputs: Inputs, generator: torch.Generator) -> Inputs:
        def drawn(shape: torch.Size, share: float) -> torch.Tensor:
            return torch.rand(shape, generator=generator, device=self._device) < share

        if self.recipe.hide_numbers:
            hidden = drawn(inputs.numbers[:, :1].shape, self.recipe.hide_numbers)
            inputs = replace(inputs, numbers=torch.where(hidden, self.network.number_statistics.mean, inputs.numbers))
        if self.recipe.hide_words:
            hidden = drawn(inputs.tokens.shape, self.recipe.hide_words) & (inputs.tokens != PADDING)
            inputs = replace(inputs, tokens=inputs.tokens.masked_fill(hidden, UNKNOWN))
        return inputs

    @torch.no_grad()
    def validation_error(self) -> float:
        """Root mean square error of the first half of predicted chunks, in standard deviations of the actions."""
        network = self._average.eval()
        total, count = 0.0, 0
        for index, batch in enumerate(self.data.validation_batches(self.recipe.batch_size)):
            generator = torch.Generator(self._device).manual_seed(Key(0).integer("validation", index))
            noise = torch.randn(len(batch.action), *network.noise_shape, generator=generator, device=self._device)
            chunk = network.predict(batch.inputs.to(self._device), noise).chunk
            gap = (chunk - batch.action.to(self._device)) / network.action_statistics.scale
            ahead = max(1, gap.shape[1] // 2)
            total += float((gap[:, :ahead] ** 2).mean(dim=(1, 2)).sum())
            count += len(gap)
        return math.sqrt(total / count) if count else math.nan

    # Saving and going on

    def save(self) -> None:
        """Save the averaged network, and where the training stands."""
        origin = {"recipe": asdict(self.recipe), "step": self.step, "episodes": len(self.data.training)}
        checkpoint.save(self.folder, self._average, origin, self._stored)
        last = self.folder / _LAST
        last.mkdir(exist_ok=True)
        tensors = {f"network/{name}": value for name, value in self.network.state_dict().items()}
        tensors |= {f"average/{name}": value for name, value in self._average.state_dict().items()}
        for index, state in self._optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser/{index}/{name}": torch.as_tensor(value) for name, value in state.items()}
        stored = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
        save_file(stored, last / "training.tmp", metadata={"step": str(self.step), "training": self._identity()})
        (last / "training.tmp").replace(last / "training.safetensors")

    def resume(self) -> None:
        """Go on where the training in ``folder`` was last saved; ``ConfigError`` if it is another training."""
        path = self.folder / _LAST / "training.safetensors"
        if not path.exists():
            raise ConfigError(f"there is no training to go on with in {self.folder}")
        from safetensors import safe_open

        with safe_open(path, framework="pt") as file:
            metadata: Mapping[str, str] = file.metadata()
        if metadata["training"] != self._identity():
            raise ConfigError(
                f"{self.folder} holds another training ({metadata['training']}); this one is {self._identity()}"
            )
        tensors = load_file(path, device=str(self._device))
        for prefix, network in (("network/", self.network), ("average/", self._average)):
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
        return json.dumps({"kind": self.network.kind, "settings": self.network.settings, "recipe": recipe})


def schedule(step: int, warmup: int, steps: int) -> float:
    """A linear rise over ``warmup`` steps and a cosine down to a hundredth at the last, as a factor."""
    rise = min(1.0, (step + 1) / max(1, warmup))
    fall = 0.5 * (1 + math.cos(math.pi * min(1.0, step / max(1, steps))))
    return rise * max(0.01, fall)


def half_precision(device: torch.device) -> bool:
    """Whether bfloat16 is fast there: on CUDA, and on processors with matrix tiles."""
    return device.type == "cuda" or (device.type == "cpu" and torch.cpu._is_amx_tile_supported())


def _shifted(inputs: Inputs, most: int, generator: torch.Generator) -> Inputs:
    if most <= 0:
        return inputs
    images = {}
    for key, image in inputs.images.items():
        down, right = torch.randint(0, 2 * most + 1, (2,), generator=generator, device=image.device).tolist()
        padded = torch.nn.functional.pad(image.float(), (most,) * 4, mode="replicate").to(image.dtype)
        images[key] = padded[..., down : down + image.shape[-2], right : right + image.shape[-1]]
    return Inputs(images, inputs.numbers, inputs.tokens)
