"""Which Python a worker runs in, and what it is to find there: this one with all it has, or another with its own."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from simeval.errors import ConfigError, MissingInterpreterError

_PACKAGES = ("simeval", "envs", "policies", "worldmodels", "assets")
"""What another interpreter is shown of this one's packages; everything else it has by itself, or has not."""
_THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
_OF_THIS_PYTHON = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")
_ASKING = 20.0
"""How long an interpreter may take to say what it is [s]."""
_BOOT = Path(__file__).with_name("boot.py")


@dataclass(frozen=True, slots=True)
class Interpreter:
    """An interpreter to start workers in; ``foreign``: not the one that runs this."""

    path: str
    foreign: bool

    @classmethod
    def of(cls, python: str | None) -> "Interpreter":
        """The interpreter that a setting names: a path, a command, or none for this one; ``ConfigError`` otherwise."""
        if python is None:
            return cls(sys.executable, False)
        if not isinstance(python, str) or not python:
            raise ConfigError(f"host.python is the path of a Python interpreter, or null; received {python!r}")
        found = shutil.which(os.path.expanduser(python))
        if found is None:
            raise MissingInterpreterError(
                f"host.python={python}: there is no such program; name the python of a virtual environment, "
                "e.g. /path/to/venv/bin/python; LIBERO's is made by: make libero"
            )
        path = os.path.abspath(found)  # links stay as they are: a virtual environment's python is one
        return cls(path, path != os.path.abspath(sys.executable))

    def is_python(self) -> bool:
        """Whether the program, asked, says that it is a Python: a start of it, for when a worker did not get far."""
        try:
            done = subprocess.run(
                [self.path, "-c", "import sys; print(sys.version_info[0])"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_ASKING,
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        return done.stdout.strip().isdigit()

    def command(self, descriptors: Sequence[int]) -> list[str]:
        """What to execute; ``descriptors`` are the worker's ends of the channel."""
        given = {
            "descriptors": list(descriptors),
            "bound": threading.current_thread() is threading.main_thread(),
            "path": None if self.foreign else [os.path.abspath(entry) for entry in sys.path],
            "packages": _folders() if self.foreign else {},
            "more_path": _own_path() if self.foreign else [],
        }
        return [self.path, str(_BOOT), json.dumps(given)]

    def environment(self) -> dict[str, str]:
        """Its environment variables: no numerical library starts a thread per core unless told to."""
        environment = {**dict.fromkeys(_THREADS, "1"), **os.environ}
        if self.foreign:
            for name in _OF_THIS_PYTHON:
                environment.pop(name, None)
            environment["PYTHONNOUSERSITE"] = "1"
        return environment


def _folders() -> dict[str, str]:
    """Package -> the folder that it lies in."""
    folders = {}
    for name in _PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            folders[name] = os.path.dirname(os.path.abspath(next(iter(spec.submodule_search_locations))))
    return folders


def _own_path() -> list[str]:
    """Where modules of the user's own lie: the import path without this interpreter's library and packages."""
    installed = [os.path.abspath(prefix) for prefix in (sys.prefix, sys.base_prefix, sys.exec_prefix)]
    entries = dict.fromkeys(os.path.abspath(entry) for entry in sys.path)
    return [
        entry
        for entry in entries
        if os.path.isdir(entry)
        and not {"site-packages", "dist-packages"}.intersection(Path(entry).parts)
        and not any(os.path.join(prefix, "lib") in (entry, *map(str, Path(entry).parents)) for prefix in installed)
    ]
