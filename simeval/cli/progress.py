"""The progress bar of a run: episodes per second, success so far with its interval (or mean return), time left."""

import sys
import time
from collections import defaultdict
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from simeval.episode import Episode
from simeval.stats import wilson
from simeval.wording import bounds_in_percent, percent, quantities


class RunProgress:
    """Shown on a terminal; elsewhere nothing is printed while the run goes on."""

    def __init__(self, total: int | None, recalled: int = 0):
        console = Console(stderr=True)
        self._progress = Progress(
            BarColumn(bar_width=16, table_column=Column(min_width=16)),
            MofNCompleteColumn(table_column=Column(no_wrap=True, min_width=9)),
            TextColumn("{task.fields[rate]}", table_column=Column(no_wrap=True, min_width=6)),
            TextColumn("left", style="dim", table_column=Column(no_wrap=True, min_width=4)),
            TimeRemainingColumn(table_column=Column(no_wrap=True, min_width=7)),
            TextColumn("{task.fields[success]}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
            console=console,
            expand=True,
            disable=not sys.stderr.isatty(),
        )
        self._task = self._progress.add_task("episodes", total=total, completed=recalled, rate="", success="")
        self._began = time.perf_counter()
        self._run = 0
        self.errors = 0
        self._outcomes: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        self._returns: dict[str, list[float]] = defaultdict(list)

    def __enter__(self) -> "RunProgress":
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def episode(self, episode: Episode) -> None:
        """Take note of a finished episode."""
        self._run += 1
        self.errors += episode.status == "error"
        if episode.status == "done" and not episode.ending.success_hold:
            self._returns[episode.rollout.policy].append(episode.total_reward)
        elif episode.status == "done":
            counts = self._outcomes[episode.rollout.policy]
            counts[0] += episode.succeeded
            counts[1] += 1
        if self._progress.disable:
            return
        shown = []
        for policy, (successes, count) in list(self._outcomes.items())[:3]:
            interval = wilson(successes, count)
            low, high = bounds_in_percent([interval.low, interval.high])
            shown.append(f"{policy} {percent(successes / count, 1)} [{low}–{high}]")
        for policy, returns in list(self._returns.items())[:3]:
            shown.append(f"{policy} mean return {quantities(sum(returns) / len(returns), None)[0]}")
        if self.errors:
            shown.insert(0, f"[red]{self.errors} errors[/red]")
        rate = self._run / max(time.perf_counter() - self._began, 1e-9)
        self._progress.update(self._task, advance=1, rate=f"{rate:.1f}/s", success="  ".join(shown))
