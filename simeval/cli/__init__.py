"""The command line: ``simeval``, also ``python -m simeval``."""

from simeval.cli.app import main

__all__ = ["main"]
