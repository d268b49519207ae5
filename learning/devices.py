"""Where a network runs, and what it may take of the machine."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from simeval.errors import ConfigError
from simeval.settings import positive, whole

_MOST_THREADS = 1024
"""More than any machine has use for; torch would try to start them."""


def device_named(name: str) -> torch.device:
    """The device of a setting: ``cpu``, ``cuda``, or ``auto``, which is CUDA where there is some."""
    if not isinstance(name, str):
        raise ConfigError(f"device is cpu, cuda or auto; received {name!r}")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(
            f"device={name} was asked for, but torch {torch.__version__} finds no CUDA device; use cpu or auto"
        )
    try:
        return torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device is cpu, cuda or auto; received {name!r}") from None


def half_precision(device: torch.device) -> bool:
    """Whether bfloat16 is fast there: on CUDA, and on processors with matrix tiles."""
    return device.type == "cuda" or (device.type == "cpu" and torch.cpu._is_amx_tile_supported())


def thread_count(received: int) -> int:
    """The setting ``threads``: threads of torch on the CPU."""
    return whole("threads", received, 1, _MOST_THREADS)


def memory_bytes(gib: float) -> int:
    """The setting ``memory_gib``, in bytes."""
    return int(positive("memory_gib", gib) * 2**30)


@contextmanager
def threads_of_torch(count: int | None) -> Iterator[None]:
    """Within it torch uses ``count`` threads on the CPU, or as many as it takes."""
    kept = torch.get_num_threads()
    torch.set_num_threads(count or kept)
    try:
        yield
    finally:
        torch.set_num_threads(kept)
