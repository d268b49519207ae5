"""What policies and world models share to learn: data, networks, optimisation, checkpoints. It imports ``simeval``."""
