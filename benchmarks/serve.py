"""``simeval serve`` with eight clients against serving them one at a time; the last line is one JSON object.

The same small vision-language-action network, of random weights, is served twice: in batches of eight, and by calls of
one observation each. Eight connections of another process ask without pause. Sides take turns, and the fastest of each
is kept.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import gymnasium
import numpy as np
import torch

from learning.words import Vocabulary
from policies.learned import checkpoint
from policies.learned.features import Features
from policies.learned.policy import learned
from policies.vla import VisionLanguageAction
from simeval import WorldSpec
from simeval.serve.messages import pack, unpack
from simeval.serve.service import PolicyService
from simeval.serve.serving import serving

CLIENTS = 8
SIDE, STATE, ACTION, HORIZON = 64, 7, 7, 8
SENTENCE = "put the red block on the green zone"


def network(folder: Path) -> None:
    features = Features({"image_front": SIDE}, {"proprio": STATE}, ACTION, HORIZON, control_dt=0.05)
    torch.manual_seed(0)
    made = VisionLanguageAction(features, Vocabulary.of([SENTENCE]), "flow", 64, 4, 2, 1, 16)
    rng = np.random.default_rng(0)
    made.number_statistics.fit(rng.normal(size=(100, STATE)))
    made.action_statistics.fit(rng.normal(size=(100, ACTION)))
    checkpoint.save(folder, made, {"by": "benchmarks/serve.py"})
    print(f"network: {sum(p.numel() for p in made.parameters()) / 1e6:.2f} million parameters, one {SIDE} px image")


def observation(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "image_front": rng.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8),
        "proprio": rng.normal(size=STATE).astype(np.float32),
    }


def service(folder: Path, batch_size: int) -> PolicyService:
    spaces = {
        "image_front": gymnasium.spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8),
        "proprio": gymnasium.spaces.Box(-np.inf, np.inf, (STATE,), np.float32),
    }
    action = gymnasium.spaces.Box(-1, 1, (ACTION,), np.float32)
    spec = WorldSpec("benchmark", gymnasium.spaces.Dict(spaces), action, 0.05, ("task",))
    trial = {name: value[None] for name, value in observation(0).items()}
    return PolicyService(learned(folder, execute=1, batch_size=batch_size).bind(spec), spec, (trial, SENTENCE))


async def ask(url: str, requests: int) -> float:
    """Answers/s over all connections, each of which asks again as soon as it has its answer."""
    from websockets.asyncio.client import connect

    async def one(index: int, ready: asyncio.Barrier) -> None:
        async with connect(url, compression=None, max_size=None, ping_interval=None) as connection:
            await connection.recv()
            seen = observation(index)
            await ready.wait()
            for request in range(requests):
                message = {**seen, "prompt": SENTENCE, "noise_key": f"{index}:policy:{request}"}
                await connection.send(pack(message))
                assert unpack(await connection.recv())["actions"].shape == (HORIZON, ACTION)

    barrier = asyncio.Barrier(CLIENTS + 1)
    tasks = [asyncio.create_task(one(index, barrier)) for index in range(CLIENTS)]
    await barrier.wait()
    began = time.perf_counter()
    await asyncio.gather(*tasks)
    return CLIENTS * requests / (time.perf_counter() - began)


def speed(served: PolicyService, max_batch: int, requests: int) -> np.ndarray:
    """Answers per second, and per second of the server's processor time (of its start too: a lower bound)."""
    with serving(served, max_batch=max_batch) as url:
        command = [sys.executable, __file__, "--ask", url, "--requests", str(requests)]
        began = time.process_time()
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return np.array([float(done.stdout), CLIENTS * requests / (time.process_time() - began)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few requests only: does it run, not how fast")
    parser.add_argument("--ask", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--requests", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.ask is not None:
        print(asyncio.run(ask(given.ask, given.requests)))
        return
    requests, repeats = (5, 1) if given.quick else (5, 4)
    with tempfile.TemporaryDirectory() as folder:
        network(Path(folder))
        together, alone = service(Path(folder), CLIENTS), service(Path(folder), 1)
        batched, single = np.zeros(2), np.zeros(2)
        for _ in range(repeats):
            batched = np.maximum(batched, speed(together, CLIENTS, requests))
            single = np.maximum(single, speed(alone, 1, requests))
    for name, sides in zip(("s", "s of the server's processor time"), zip(batched, single, strict=True), strict=True):
        print(f"{CLIENTS} clients, requests/{name}: {sides[0]:.1f} in batches, {sides[1]:.1f} one at a time")
    wall, processor = (batched / single).round(2).tolist()
    ratios = {"serve_batched_vs_one_at_a_time": wall, "per_processor_second": processor}
    print(json.dumps({"clients": CLIENTS, **ratios}))


if __name__ == "__main__":
    main()
