"""Policies: experts, simple ones, wrappers, learned and remote. They import ``simeval`` and nothing else of this project."""
