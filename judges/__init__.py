"""Judges of recorded episodes: what the World recorded, a classifier learned from traces, a model behind HTTP."""
