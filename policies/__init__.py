"""Policies: experts, simple ones, wrappers, learned, remote; they import only ``simeval`` of this project."""
