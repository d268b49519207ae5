"""Keyed noise for torch models that draw theirs from torch's global generator."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from simeval.errors import UnsupportedError
from simeval.noise import StepKey, standard_normal, uniform


@contextmanager
def keyed_noise(keys: Sequence[StepKey]) -> Iterator[None]:
    """Within it, ``torch.randn``, ``rand``, ``normal``, ``multinomial`` and their like draw from ``keys``.

    The leading dimension of what is drawn is the batch (or a multiple of it, the batch varying slowest): row i comes
    from ``keys[i]``, and the k-th draw is the event ``("torch", k)``. Raises ``UnsupportedError`` for a draw of another
    shape, and where something was drawn from the global generator all the same. A draw that was given a generator is
    left alone.
    """
    before = _global_states()
    with _KeyedNoise(keys):
        yield
    if any(not torch.equal(was, now) for was, now in zip(before, _global_states(), strict=True)):
        raise UnsupportedError(
            "the model drew noise from torch's global generator in a way that cannot be keyed: its actions would "
            "depend on what was drawn before; make its sampling deterministic"
        )


def _global_states() -> list[torch.Tensor]:
    return [torch.random.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else ())]


class _KeyedNoise(TorchFunctionMode):
    def __init__(self, keys: Sequence[StepKey]):
        super().__init__()
        self._keys = keys
        self._draws = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        replacement = _REPLACED.get(func)
        if replacement is None or given.get("generator") is not None:
            return func(*args, **given)
        given.pop("generator", None)
        return replacement(self, *args, **given)

    def draw(self, kind: Callable[..., np.ndarray], shape: Sequence[int]) -> torch.Tensor:
        """Float32 noise of ``shape``, on the CPU."""
        n = len(self._keys)
        if not shape or shape[0] % n:
            raise UnsupportedError(
                f"the model draws noise of shape {list(shape)} for a batch of {n}; which part belongs to which "
                "observation cannot be told"
            )
        noise = kind(self._keys, (shape[0] // n, *shape[1:]), "torch", self._draws)
        self._draws += 1
        return torch.from_numpy(noise.astype(np.float32).reshape(tuple(shape)))


_Replacement = Callable[..., torch.Tensor]


def _made(kind: Callable[..., np.ndarray]) -> _Replacement:
    """In place of ``torch.randn`` and ``torch.rand``."""

    def make(noise: _KeyedNoise, *size: Any, dtype: Any = None, device: Any = None, **rest: Any) -> torch.Tensor:
        shape = rest.get("size", size[0] if len(size) == 1 and not isinstance(size[0], int) else size)
        return noise.draw(kind, tuple(shape)).to(device=device, dtype=dtype or torch.get_default_dtype())

    return make


def _like(kind: Callable[..., np.ndarray]) -> _Replacement:
    """In place of ``torch.randn_like`` and ``torch.rand_like``."""

    def make(noise: _KeyedNoise, like: torch.Tensor, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
        return noise.draw(kind, like.shape).to(device=device or like.device, dtype=dtype or like.dtype)

    return make


def _normal(
    noise: _KeyedNoise, mean: Any, std: Any = 1.0, size: Any = None, *, dtype: Any = None, device: Any = None, **_: Any
) -> torch.Tensor:
    """In place of ``torch.normal``, of numbers with a size or of tensors."""
    tensor = next((value for value in (mean, std) if isinstance(value, torch.Tensor)), None)
    shape = size if tensor is None else torch.broadcast_shapes(*(torch.as_tensor(v).shape for v in (mean, std)))
    place = {"device": device, "dtype": dtype} if tensor is None else {"device": tensor.device, "dtype": tensor.dtype}
    return noise.draw(standard_normal, tuple(shape)).to(**place) * std + mean


def _normal_in_place(noise: _KeyedNoise, tensor: torch.Tensor, mean: float = 0.0, std: float = 1.0) -> torch.Tensor:
    return tensor.copy_(noise.draw(standard_normal, tensor.shape) * std + mean)


def _uniform_in_place(noise: _KeyedNoise, tensor: torch.Tensor, low: float = 0.0, high: float = 1.0) -> torch.Tensor:
    return tensor.copy_(noise.draw(uniform, tensor.shape) * (high - low) + low)


def _multinomial(
    noise: _KeyedNoise, weights: torch.Tensor, num_samples: int, replacement: bool = False
) -> torch.Tensor:
    """In place of ``torch.multinomial`` for one sample per row, by the inverse of the distribution function."""
    if num_samples != 1 or weights.ndim != 2:
        raise UnsupportedError(f"the model draws {num_samples} of {list(weights.shape)} without keys; one a row can be")
    total = weights.double().cumsum(-1)
    drawn = noise.draw(uniform, (len(weights), 1)).to(weights.device, torch.float64) * total[:, -1:]
    return torch.searchsorted(total, drawn, right=True).clamp_max(weights.shape[1] - 1)


_REPLACED: dict[Any, _Replacement] = {
    torch.randn: _made(standard_normal),
    torch.rand: _made(uniform),
    torch.randn_like: _like(standard_normal),
    torch.rand_like: _like(uniform),
    torch.normal: _normal,
    torch.Tensor.normal_: _normal_in_place,
    torch.Tensor.uniform_: _uniform_in_place,
    torch.multinomial: _multinomial,
}
