"""Hydra configuration, shipped as package data."""
