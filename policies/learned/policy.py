"""The policy of a checkpoint."""

from pathlib import Path

from policies.chunked import Chunked, Ensembled
from policies.clipped import Clipped
from policies.learned.chunks import NetworkChunks
from simeval.policy import Policy


def learned(
    checkpoint: str | Path,
    execute: int | None = None,
    batch_size: int | None = None,
    device: str = "auto",
    threads: int = 1,
    samples: int = 1,
    compile: bool = False,
    temperature: float = 1.0,
) -> Policy:
    """A trained policy: the first ``execute`` actions of each chunk, or with none their mean (ACT's ensembling).

    ``batch_size`` rows are always sent together (padded), by default 8 on the CPU, where several batches are predicted
    side by side, and 32 on CUDA; it and ``threads`` belong to the policy's fingerprint, since low bits depend on them.
    Actions that leave the space are clipped to it. See ``NetworkChunks`` for the rest.
    """
    model = NetworkChunks(checkpoint, device, threads, samples, compile, temperature)
    if batch_size is None:
        batch_size = 8 if model.device.type == "cpu" else 32
    chunks = Ensembled(model, batch_size) if execute is None else Chunked(model, execute, batch_size)
    return Clipped(chunks)
