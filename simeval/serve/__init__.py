"""A policy behind a socket: what a server says and hears, how it batches, and the protocols it speaks."""
