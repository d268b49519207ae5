"""MuJoCo's warnings, sent to ``logging`` instead of a MUJOCO_LOG.TXT in the working directory."""

import logging

import mujoco

_log = logging.getLogger(__name__)


def log_mujoco_warnings() -> None:
    """Send MuJoCo's warnings to ``logging`` from now on, unless somebody handles them already (process-wide)."""
    if mujoco.get_mju_user_warning() is None:
        mujoco.set_mju_user_warning(_log.warning)
