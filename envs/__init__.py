"""Simulators as Worlds. They import ``simeval`` and nothing else of this project."""

import os
import sys

# MuJoCo picks its OpenGL backend when it is imported; without a display only EGL works.
if sys.platform.startswith("linux") and not os.environ.get("DISPLAY"):
    os.environ.setdefault("MUJOCO_GL", "egl")
