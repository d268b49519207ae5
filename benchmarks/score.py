"""Scoring recorded episodes: seconds and peak memory at 2,000 and 20,000 episodes, each in its own process.

    python benchmarks/score.py [--episodes 2000 20000]

The last line is one JSON object: seconds to score the most episodes, and peak memory there over peak memory at the
fewest.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

POLICIES = {"expert": 0.95, "noisy": 0.7, "learned": 0.5, "uniform": 0.05}
TASKS = [f"task-{index}" for index in range(20)]


def make(folder: Path, episodes: int) -> None:
    from simeval.testing.runs import made_episodes, write_made_run

    write_made_run(folder, made_episodes(POLICIES, TASKS, episodes // (len(POLICIES) * len(TASKS))))


def measure(folder: Path) -> dict[str, float]:
    from simeval.reader import Run
    from simeval.score import score

    begin = time.perf_counter()
    score(Run(folder))
    seconds = time.perf_counter() - begin
    return {"seconds": seconds, "peak_mib": peak_mib()}


def peak_mib() -> float:
    """This process's peak memory; ``ru_maxrss`` would count what its parent had when it started it."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, nargs="+", default=[2000, 20_000])
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.measure)))
        return
    results = {}
    with tempfile.TemporaryDirectory() as scratch:
        for count in sorted(args.episodes):
            folder = Path(scratch) / str(count)
            make(folder, count)
            command = [sys.executable, __file__, "--measure", str(folder)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            results[count] = json.loads(done.stdout.splitlines()[-1])
            print(
                f"{count:>7} episodes: {results[count]['seconds']:6.2f} s, peak {results[count]['peak_mib']:6.0f} MiB"
            )
    fewest, most = results[min(results)], results[max(results)]
    summary = {"score_seconds": most["seconds"], "score_peak_memory_ratio": most["peak_mib"] / fewest["peak_mib"]}
    print(json.dumps({name: round(value, 3) for name, value in summary.items()}))


if __name__ == "__main__":
    main()
