"""The commands and their arguments. Errors are one line and exit code 2; a traceback only with ``--debug``."""

import argparse
import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from simeval.errors import ConfigError, SimevalError, UnsupportedError, in_brief

_LATER = {
    "import": "reading other formats comes with training from logged rollouts",
}
"""Commands of the design that are not there yet, and what they come with."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started it
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    parser = _parser()
    given, rest = parser.parse_known_args(arguments)
    if rest and (
        given.command not in ("run", "check", "train", "serve", "export", "judge")
        or any(word.startswith("-") for word in rest)
    ):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        given.overrides += rest  # settings may follow options
    if given.command is None:
        parser.print_help()
        return 2
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a letter is no reason to stop
    try:
        with _terminable():
            return _dispatch(given)
    except BrokenPipeError:
        return 141
    except SimevalError as error:
        if given.debug:
            traceback.print_exc()
        print(f"simeval: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except OSError as error:
        if given.debug:
            traceback.print_exc()
        print(f"simeval: {error.strerror or error}: {error.filename or ''}".rstrip(": "), file=sys.stderr)
        return 2
    except MemoryError:
        if given.debug:
            traceback.print_exc()
        print("simeval: there is not memory enough for what was asked; ask for less at a time", file=sys.stderr)
        return 2
    except Exception as error:  # of somebody's World, policy or protocol outside an episode, or a fault of ours
        if given.debug:
            traceback.print_exc()
        report = "".join(traceback.format_exception(error))
        print(f"simeval: {in_brief(report)}; with --debug it shows where", file=sys.stderr)
        return 2
    except _Terminated:
        print("simeval: terminated", file=sys.stderr)
        return 143
    except KeyboardInterrupt:
        print("simeval: interrupted", file=sys.stderr)
        return 130


class _Parser(argparse.ArgumentParser):
    """Help ends with what can be set, which is read when help is asked for."""

    settings_of: str | None = None

    def format_help(self) -> str:
        """See ``argparse.ArgumentParser.format_help``."""
        text = super().format_help()
        if self.settings_of is None:
            return text
        from simeval.cli.settings_help import settings_help

        return f"{text}\n{settings_help(self.settings_of)}\n"


class _Terminated(KeyboardInterrupt):
    """SIGTERM, which a command hears as it hears Ctrl-C."""


@contextmanager
def _terminable() -> Iterator[None]:
    """While a command runs, SIGTERM (of ``timeout``, a scheduler, a shutdown) lets it keep what it has, and end."""

    def hear(number: int, frame: object) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)  # a second one does not cut the first one's work short
        raise _Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, hear)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _dispatch(given: argparse.Namespace) -> int:
    if given.command in _LATER:
        raise UnsupportedError(f"`simeval {given.command}` is not there yet: {_LATER[given.command]}")
    if given.command == "run":
        from simeval.cli.run_command import run_command

        return run_command(given.overrides, given.config_dir)
    if given.command == "check":
        from simeval.cli.check_command import check_command

        return check_command(given.overrides, given.config_dir, given.tasks, given.steps)
    if given.command == "train":
        from simeval.cli.train_command import train_command

        return train_command(given.overrides, given.config_dir)
    if given.command == "serve":
        from simeval.cli.serve_command import serve_command

        return serve_command(given.overrides, given.config_dir)
    if given.command == "judge":
        from simeval.cli.judge_command import judge_command

        return judge_command(Path(given.run), given.overrides, given.config_dir)
    if given.command == "doctor":
        from simeval.cli.doctor import doctor

        return doctor(given.canaries, given.record, given.debug)
    from simeval.cli.read_commands import compare_command, export_command, report_command, score_command

    if given.command == "score":
        return score_command(Path(given.run), given.audit, given.judge)
    if given.command == "report":
        return report_command(Path(given.run), given.videos, given.audit, given.config_dir, given.judge)
    if given.command == "compare":
        return compare_command(Path(given.run_a), Path(given.run_b), given.policy_a, given.policy_b)
    if given.command == "export":
        return export_command(Path(given.run), given.to, given.output, given.overrides, given.config_dir)
    raise ConfigError(f"unknown command {given.command!r}")


def _parser() -> argparse.ArgumentParser:
    common = _Parser(add_help=False)
    common.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser = _Parser(
        prog="simeval",
        description="Exact, paired evaluation of robot policies in simulators and learned world models.",
        parents=[common],
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    def command(name: str, text: str) -> _Parser:
        return commands.add_parser(name, help=text, description=text, parents=[common])

    for name, text in (
        ("run", "run a study into a new run folder, score it and report it"),
        ("check", "run the conformance suite on a world or a policy and print the table"),
        ("train", "learn from recorded runs, e.g. policy=vla data=runs/x"),
        ("serve", "serve a policy to openpi, RoboArena or OpenVLA clients, e.g. policy=vla serve.port=8000"),
    ):
        sub = command(name, text)
        sub.add_argument("overrides", nargs="*", metavar="SETTING=VALUE", help="e.g. world=metaworld policy=a,b seed=1")
        sub.add_argument("--config-dir", help="a folder with further world/, policy/, experiment/ configurations")
        if name in ("run", "train"):
            sub.settings_of = name
        if name == "check":
            sub.add_argument("--tasks", help="a world's tasks to check: all, or names with commas (default: three)")
            sub.add_argument("--steps", type=int, default=200, help="steps to follow every fork for (default: 200)")
    audit = "compare every image and checkpoint with its digest too, which reads the whole trace"
    judged = "count success by the verdicts of a judge of this run (`simeval judge`), into a file of its own"
    sub = command(
        "judge", "judge a run's episodes, and audit the judge, e.g. judge=classifier judge.checkpoint=trained/j"
    )
    sub.add_argument("run", metavar="RUN")
    sub.add_argument("overrides", nargs="*", metavar="SETTING=VALUE", help="judge=own|classifier|vlm judge.… worlds=…")
    sub.add_argument("--config-dir", help="a folder with further judge/ configurations")
    sub = command("score", "recompute a run's scores from its trace")
    sub.add_argument("run", metavar="RUN")
    sub.add_argument("--audit", action="store_true", help=audit)
    sub.add_argument("--judge", metavar="NAME", help=judged)
    sub = command("report", "write a run's report.html from its trace")
    sub.add_argument("run", metavar="RUN")
    sub.add_argument("--audit", action="store_true", help=audit)
    sub.add_argument("--judge", metavar="NAME", help=judged)
    sub.add_argument("--config-dir", help="the folder of configurations that the run was made with")
    sub.add_argument("--videos", type=int, default=0, help="film so many successes and failures per task and policy")
    sub = command("compare", "compare two runs, paired where they share starts and noise")
    sub.add_argument("run_a", metavar="RUN_A")
    sub.add_argument("run_b", metavar="RUN_B")
    sub.add_argument("--policy-a", help="the policy of RUN_A to compare, if it has several")
    sub.add_argument("--policy-b", help="the policy of RUN_B to compare, if it has several")
    sub = command("export", "write a run in another format")
    sub.add_argument("run", metavar="RUN")
    sub.add_argument("overrides", nargs="*", metavar="SETTING=VALUE", help="lerobot: action=intended succeeded=true …")
    sub.add_argument("--config-dir", help="the folder of configurations that the run was made with")
    sub.add_argument("--to", required=True, help="minari or lerobot (robomimic comes later)")
    sub.add_argument(
        "--output",
        help="name of the dataset (minari: namespace/name-v0; lerobot: namespace/name, or a folder such as ./name); by "
        "default from the run's name",
    )
    sub = command(
        "doctor", "say what is installed, what is missing, how to get it, and whether the physics is as recorded"
    )
    sub.add_argument("--canaries", type=Path, help="compare with another installation's file, from doctor --record")
    sub.add_argument("--record", type=Path, metavar="FILE", help="write what simulators do here to a new file")
    for name, text in _LATER.items():
        sub = command(name, f"(not there yet) {text}")
        sub.add_argument("rest", nargs=argparse.REMAINDER)
    return parser
