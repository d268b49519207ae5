"""Errors that go from a worker to its host as plain data, and come out as what they were."""

import builtins
import traceback
from typing import Any

from simeval import errors


def described(error: BaseException) -> dict[str, str]:
    """An error as plain data."""
    return {
        "class": type(error).__name__,
        "module": type(error).__module__,
        "text": str(error),
        "traceback": "".join(traceback.format_exception(error)).rstrip(),
    }


def rebuilt(data: dict[str, Any]) -> Exception:
    """The error with the same text: of the same class where that is simeval's or Python's own, else a RuntimeError.

    The traceback in the worker is noted on it.
    """
    home = {"simeval.errors": errors, "builtins": builtins}.get(data["module"])
    kind = getattr(home, data["class"], None) if home is not None else None
    if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, OSError | UnicodeError):
        error = kind.__new__(kind)
        error.args = (data["text"],)
    else:
        error = RuntimeError(f"{data['module']}.{data['class']}: {data['text']}")
    error.add_note(f"in the worker process:\n{data['traceback']}")
    return error
