"""Where a network runs."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from simeval.errors import ConfigError


def device_named(name: str) -> torch.device:
    """The device of a setting: ``cpu``, ``cuda``, or ``auto``, which is CUDA where there is some."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(
            f"device={name} was asked for, but torch {torch.__version__} finds no CUDA device; use cpu or auto"
        )
    try:
        return torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device must be cpu, cuda or auto; received {name!r}") from None


def half_precision(device: torch.device) -> bool:
    """Whether bfloat16 is fast there: on CUDA, and on processors with matrix tiles."""
    return device.type == "cuda" or (device.type == "cpu" and torch.cpu._is_amx_tile_supported())


@contextmanager
def threads_of_torch(count: int | None) -> Iterator[None]:
    """Within it torch uses ``count`` threads on the CPU, or as many as it takes."""
    kept = torch.get_num_threads()
    torch.set_num_threads(count or kept)
    try:
        yield
    finally:
        torch.set_num_threads(kept)
