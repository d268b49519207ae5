"""Learned models as Worlds, and their training. They import ``simeval`` and ``learning``, nothing else of this project."""
