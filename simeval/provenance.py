"""What a run's numbers depend on beside its configuration: versions, commit, hardware."""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = (
    "simeval",
    "numpy",
    "scipy",
    "h5py",
    "gymnasium",
    "mujoco",
    "robosuite",
    "metaworld",
    "gymnasium-robotics",
    "dm_control",
    "ogbench",
    "gym-pusht",
    "pymunk",
    "torch",
    "diffusers",
    "opencv-python",
)
"""Distributions whose version can change a number or a picture."""


def versions() -> dict[str, str | None]:
    """Version of Python and of every package that matters; none where it is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def hardware() -> dict[str, Any]:
    """Processor, cores that this process may use, and operating system."""
    return {
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": cores(),
        "system": platform.platform(),
    }


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor()


def git_commit(folder: Path) -> str | None:
    """The commit that ``folder`` is at, with ``-dirty`` if tracked files were changed; none outside a checkout."""
    try:
        text = subprocess.run(
            ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return text.stdout.strip() or None
