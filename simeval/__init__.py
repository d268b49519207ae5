"""Exact, paired evaluation of robot policies in simulators and learned world models."""
