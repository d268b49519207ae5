"""What learned policies are made of: features, statistics, layers, checkpoints, demonstrations, training."""
