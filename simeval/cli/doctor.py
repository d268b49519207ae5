"""``simeval doctor``: what is installed, what is missing, and how to get it."""

import importlib
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

from simeval.cli.canary import Canary, compare, play_apart, read, shipped, write
from simeval.errors import SimevalError
from simeval.provenance import hardware, versions


@dataclass(frozen=True)
class _Item:
    module: str
    distribution: str
    purpose: str
    remedy: str


_ITEMS = (
    _Item("mujoco", "mujoco", "tabletop and all MuJoCo worlds", "pip install simeval"),
    _Item("robosuite", "robosuite", "world=robosuite", "pip install simeval"),
    _Item("metaworld", "metaworld", "world=metaworld", "pip install 'simeval[metaworld]'"),
    _Item("gymnasium_robotics", "gymnasium-robotics", "world=robotics", "pip install 'simeval[robotics]'"),
    _Item("dm_control", "dm_control", "world=dm_control", "pip install 'simeval[dm_control]'"),
    _Item("ogbench", "ogbench", "world=ogbench", "pip install 'simeval[ogbench]'"),
    _Item("gym_pusht", "gym-pusht", "world=pusht", "pip install 'simeval[pusht]'"),
    _Item("torch", "torch", "learned policies and world models", "pip install torch"),
    _Item("diffusers", "diffusers", "diffusion policies and world models", "pip install diffusers"),
    _Item(
        "cv2", "opencv-python", "image processing", "pip install opencv-python (never beside opencv-python-headless)"
    ),
    _Item("minari", "minari", "simeval export --to minari", "pip install 'simeval[minari]'"),
    _Item("stable_baselines3", "stable-baselines3", "reinforcement learning", "pip install 'simeval[rl]'"),
)

_RENDER = """
import envs, mujoco
model = mujoco.MjModel.from_xml_string("<mujoco><worldbody><light pos='0 0 1'/><geom size='.1'/></worldbody></mujoco>")
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
with mujoco.Renderer(model, 32, 32) as renderer:
    renderer.update_scene(data)
    assert renderer.render().any()
"""


def doctor(canaries: Path | None = None, record: Path | None = None, debug: bool = False) -> int:
    """Print what there is, and whether simulators behave here as they did where the canaries were recorded.

    ``canaries``: a file of another installation's, instead of those that ship; ``record``: a new file for this one's;
    ``debug``: with what was run here and there, in full. Returns 0, or 1 if something that the base needs is missing or
    a simulator behaves otherwise.
    """
    reference = shipped() if canaries is None else read(canaries)
    if record is not None:
        return _record(reference, record)
    table = Table(title="simeval doctor", title_justify="left")
    for column in ("", "what", "version", "for", "how to get it"):
        table.add_column(column, overflow="fold")
    missing = 0
    for item in _ITEMS:
        version, problem = _installed(item)
        missing += problem is not None and item.remedy == "pip install simeval"
        table.add_row(_mark(problem is None), item.distribution, version, item.purpose, escape(problem or ""))
    works, reason = _renders()
    table.add_row(
        _mark(works),
        "OpenGL rendering",
        "",
        "images, videos",
        "" if works else f"apt-get install libegl1 libgl1-mesa-dri, and MUJOCO_GL=egl ({reason})",
    )
    browser = next((name for name in ("chromium", "chromium-browser", "google-chrome") if shutil.which(name)), None)
    table.add_row(
        _mark(browser is not None),
        "Chromium",
        "",
        "the report's own test",
        "" if browser else "apt-get install chromium",
    )
    console = Console()
    console.print(table)
    found = hardware()
    console.print(
        f"Python {versions()['python']}, {found['cores']} cores, {found['processor']}, {_gpu()}", highlight=False
    )
    astray = _show_physics(reference, debug)
    return 1 if missing or astray else 0


_MARKS = {"same": "[green]✓[/green]", "rounding": "[green]✓[/green]", "slight": "[yellow]≈[/yellow]", "absent": "–"}


def _show_physics(reference: Sequence[Canary], debug: bool) -> int:
    """Print what each canary did; returns how many simulators broke or behave otherwise."""
    table = Table(title="physics: short rollouts of fixed actions, compared with recorded ones", title_justify="left")
    for column in ("", "suite", "finding"):
        table.add_column(column, overflow="fold")
    astray = 0
    print(f"playing {len(reference)} short rollouts of fixed actions, a few seconds each …", flush=True)
    for canary in _watched(reference):
        finding = compare(canary)
        astray += finding.verdict in ("differs", "broken")
        text = f"{finding.text}\n{finding.detail}" if debug and finding.detail else finding.text
        table.add_row(_MARKS.get(finding.verdict, _mark(False)), finding.name, escape(text))
    Console().print(table)
    if astray and not debug:
        print("`simeval doctor --debug` shows what was run here and where it was recorded, in full")
    return astray


def _record(reference: Sequence[Canary], path: Path) -> int:
    played = []
    for canary in _watched(reference):
        try:
            played.append(play_apart(canary))
        except SimevalError as error:
            print(f"{canary.name}: left out, {error}")
    write(path, played)
    print(f"{len(played)} canaries recorded in {path}")
    return 0


def _watched(canaries: Sequence[Canary]) -> Iterable[Canary]:
    return track(
        canaries,
        description="playing canaries",
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
        transient=True,
    )


def _mark(fine: bool) -> str:
    return "[green]✓[/green]" if fine else "[red]✗[/red]"


def _installed(item: _Item) -> tuple[str, str | None]:
    try:
        version = metadata.version(item.distribution)
    except metadata.PackageNotFoundError:
        return "", item.remedy
    probe = subprocess.run([sys.executable, "-c", f"import {item.module}"], capture_output=True, text=True)
    if probe.returncode:
        return version, f"installed, but importing it fails: {_last_line(probe.stderr)}"
    return version, None


def _renders() -> tuple[bool, str]:
    probe = subprocess.run([sys.executable, "-c", _RENDER], capture_output=True, text=True)
    return probe.returncode == 0, _last_line(probe.stderr)


def _gpu() -> str:
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return "no torch"
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "no CUDA device"


def _last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no message"
