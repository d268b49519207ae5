"""Learned models as Worlds, and their training. They import ``simeval`` and ``learning`` alone of this project."""
