"""What a training does to its images, so that their like is known too."""

import torch
from torch.nn import functional


def shifted(image: torch.Tensor, most: int, generator: torch.Generator) -> torch.Tensor:
    """``image`` [n, c, h, w] moved by up to ``most`` pixels, all alike, its edge repeated (Kostrikov et al. 2020)."""
    if most <= 0:
        return image
    down, right = torch.randint(0, 2 * most + 1, (2,), generator=generator, device=image.device).tolist()
    padded = functional.pad(image.float(), (most,) * 4, mode="replicate").to(image.dtype)
    return padded[..., down : down + image.shape[-2], right : right + image.shape[-1]]
