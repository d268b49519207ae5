"""Simulators as Worlds. They import ``simeval`` and nothing else of this project."""

import ctypes
import os
import sys


def _has_egl() -> bool:
    try:
        ctypes.CDLL("libEGL.so.1")
    except OSError:
        return False
    return True


# MuJoCo picks its OpenGL backend when it is imported. Without a display only EGL works, and where that is missing too,
# asking for it would break even what draws no pictures.
if sys.platform.startswith("linux") and not os.environ.get("DISPLAY") and _has_egl():
    os.environ.setdefault("MUJOCO_GL", "egl")
