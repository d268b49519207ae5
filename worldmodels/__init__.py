"""Learned models as Worlds, and their training. They import ``simeval`` and nothing else of this project."""
