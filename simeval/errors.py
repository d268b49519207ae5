"""Errors that say what was received, what exists and what to do.

Every error a user can cause is a :class:`SimevalError`; the command line prints it as one line and exits with 2.
"""

import difflib
import re
from collections.abc import Iterable


class SimevalError(Exception):
    """Something the caller can mend: bad configuration, bad input, a missing package."""


class ConfigError(SimevalError):
    """A configuration names something that does not exist or does not fit."""


class ActionError(SimevalError):
    """An action of the wrong shape, not finite, or outside the action space."""


class InstructionError(SimevalError):
    """An instruction that a policy cannot read; its episode ends in an error of the policy's."""


class DivergedError(SimevalError):
    """A training whose loss is not finite any more."""


class SnapshotError(SimevalError):
    """A snapshot that does not belong to this World, version or task."""


class TraceError(SimevalError):
    """A run folder or trace file that cannot be read, or that would be overwritten."""


class MissingError(SimevalError):
    """Something that is optional, and has to be installed first, is not there."""


class MissingInterpreterError(MissingError, ConfigError):
    """The Python interpreter that a World is configured to run in is not there."""


class MissingPackageError(MissingError):
    """An optional simulator suite or tool is not installed."""

    def __init__(self, what: str, pip: str):
        super().__init__(f"{what} is not installed; install it with: pip install {pip}")


class UnsupportedError(SimevalError):
    """A World or Policy lacks a capability that was asked of it."""


class HostError(SimevalError):
    """A worker process that cannot be started, or that speaks another protocol."""


class LostError(SimevalError):
    """The process that held ``slots`` has ended, and their state with it; reset or restore them to go on."""

    def __init__(self, reason: str, slots: Iterable[int] = ()):
        super().__init__(reason)
        self.slots = frozenset(slots)


def unknown(kind: str, received: object, existing: Iterable[object]) -> ConfigError:
    """The error for an unknown name: what was received, the nearest names, and what exists."""
    names = [str(name) for name in existing]
    near = difflib.get_close_matches(str(received), names, n=3, cutoff=0.6)
    hint = f"did you mean {', '.join(near)}? " if near else ""
    shown = ", ".join(names[:12]) + (f", … ({len(names)} in all)" if len(names) > 12 else "")
    return ConfigError(f"unknown {kind} {str(received)!r}; {hint}available: {shown or 'none'}")


_FRAME = re.compile(r'^ +File "([^"]+)", line (\d+).*(?:\n {4}.*)*', re.MULTILINE)
_INSTALLED = re.compile(r"[/\\](site-packages|dist-packages|lib[/\\]python[\d.]+)[/\\]")


def in_brief(report: str) -> str:
    """What a traceback says, in one line, with the innermost place that is not in an installed package (file:line).

    Of other texts the last line.
    """
    frames = list(_FRAME.finditer(report))
    if not frames:
        return next((line.strip() for line in reversed(report.splitlines()) if line.strip()), "")
    places = [match for match in frames if not _INSTALLED.search(match.group(1))] or frames
    said = " ".join(report[frames[-1].end() :].split())
    return f"{said} ({places[-1].group(1)}:{places[-1].group(2)})"
