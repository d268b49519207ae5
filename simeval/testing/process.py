"""A function called in a fresh process: nothing is inherited but the environment and the import path.

The process hashes text with another seed. What is pickled by reference is imported there; the main script, where
something is defined in it, is run there as far as the call that asked for the process.
"""

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from simeval.testing.checks import Violation

_HASH_SEEDS = ("4217", "1742")
_loading_script = False


class ScriptReachedCheck(BaseException):
    """Ends the running of the main script in the fresh process: all that the check needs is defined by now."""


def stop_script() -> None:
    """To be called where a fresh process may be asked for: a script that is only being loaded goes no further."""
    if _loading_script:
        raise ScriptReachedCheck


def in_fresh_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """``function(*arguments)``, both picklable, computed in a fresh process; ``Violation`` where that breaks."""
    try:
        work = pickle.dumps((function, arguments))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise Violation(
            f"what builds it cannot be sent to a fresh process ({error}); use a module-level function, class or partial"
        ) from error
    with tempfile.TemporaryDirectory() as folder:
        job, result = Path(folder) / "job", Path(folder) / "answer"
        job.write_bytes(pickle.dumps((_main_script(work), work)))
        done = subprocess.run(
            [sys.executable, "-c", f"from {__name__} import answer; answer()", str(job), str(result)],
            env=_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
        )
        if done.returncode or not result.exists():
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            kind = lines[-1].partition(":")[0]
            failed = "it could not be begun" if kind in ("ImportError", "ModuleNotFoundError") else "it broke"
            raise Violation(f"in a fresh process {failed}: {lines[-1]}")
        return pickle.loads(result.read_bytes())


def _environment() -> dict[str, str]:
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    other = next(seed for seed in _HASH_SEEDS if seed != os.environ.get("PYTHONHASHSEED"))
    return {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1", "PYTHONHASHSEED": other}


def _main_script(work: bytes) -> tuple[str, str | None] | None:
    """The file and package of the main script where ``work`` refers to it."""
    if b"__main__" not in work:
        return None
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    if path is None:
        raise Violation("what builds it is defined in an interactive session; put it into a file, and import that")
    return os.path.abspath(path), getattr(main, "__package__", None)


def _load_script(path: str, package: str | None) -> None:
    global _loading_script
    module = ModuleType("__main__")
    module.__file__, module.__package__ = path, package
    sys.argv = [path]
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
    code = compile(Path(path).read_bytes(), path, "exec")
    _loading_script = True
    try:
        # The name under which a guarded part of a script does not run.
        module.__dict__["__name__"] = "__mp_main__"
        exec(code, module.__dict__)
    except ScriptReachedCheck:
        pass
    finally:
        _loading_script = False


def answer() -> None:
    """The fresh process's part: the job's file and the answer's are its command-line arguments."""
    job, answer_file = Path(sys.argv[1]), Path(sys.argv[2])
    script, work = pickle.loads(job.read_bytes())
    if script is not None:
        _load_script(*script)
    try:
        function, arguments = pickle.loads(work)
    except AttributeError as error:
        raise RuntimeError(
            f"{error}; put the check under if __name__ == '__main__': at the end of the script"
        ) from None
    answer_file.write_bytes(pickle.dumps(function(*arguments)))
