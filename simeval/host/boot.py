"""The script with which a worker's interpreter begins: find simeval, or say in one line why it cannot run here.

It is given one JSON argument (see ``interpreter.Interpreter.command``), imports nothing but the standard library until
that is known to do, and is written so that an interpreter too old for simeval can still read it.
"""

import sys

if __name__ == "__main__" and sys.path[0] == __file__.rpartition("/")[0]:
    del sys.path[0]  # the folder of this script, which holds modules of a package

import importlib.machinery
import importlib.util
import json
from typing import Any, Dict  # noqa: UP035 (an older interpreter cannot read dict[str, str])

REFUSED = 78
"""Exit code: the last line on standard error says what this interpreter lacks."""
_NEEDED = ("numpy", "gymnasium", "msgpack")


class Packages:
    """An import finder for some top-level packages alone, each in the folder that it is said to lie in."""

    def __init__(self, folders: Dict[str, str]) -> None:  # noqa: UP006
        self._folders = folders

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """See ``importlib.abc.MetaPathFinder``."""
        if path is None and name in self._folders:
            return importlib.machinery.PathFinder.find_spec(name, [self._folders[name]])
        return None


def main(given: Dict[str, Any]) -> None:  # noqa: UP006
    """Make simeval importable and hand over to the worker."""
    if sys.version_info < (3, 11):  # noqa: UP036
        found = ".".join(str(part) for part in sys.version_info[:3])
        _refuse("simeval needs Python 3.11 or newer, and " + sys.executable + " is Python " + found)
    if given["path"] is None:
        sys.meta_path.insert(0, Packages(given["packages"]))
        sys.path.extend(given["more_path"])
    else:
        sys.path[:] = given["path"]
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        names = " ".join(missing)
        _refuse(sys.executable + " lacks " + names + "; install with: " + sys.executable + " -m pip install " + names)
    from simeval.host.worker import serve

    serve(*given["descriptors"], bound=given["bound"])


def _refuse(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
    raise SystemExit(REFUSED)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
