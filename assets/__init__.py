"""Models, textures and small checkpoints, shipped as package data; each folder says its licence and how it was made."""
