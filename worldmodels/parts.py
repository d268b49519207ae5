"""Parts of world models: perceptrons, and what turns pictures into vectors and back."""

import torch
from torch import nn

from learning.layers import Readout
from simeval.errors import ConfigError

_FEW = 4
"""So few outputs are summed row by row (see ``Readout``)."""
_LEAST_SIDE = 4


class Perceptron(nn.Module):
    """Two hidden layers with layer norm."""

    def __init__(self, inputs: int, width: int, outputs: int):
        super().__init__()
        last = nn.Linear if outputs >= _FEW else Readout
        self.layers = nn.Sequential(
            nn.Linear(inputs, width),
            nn.LayerNorm(width),
            nn.SiLU(),
            nn.Linear(width, width),
            nn.LayerNorm(width),
            nn.SiLU(),
            last(width, outputs),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` [..., inputs]; returns [..., outputs]."""
        return self.layers(x)


class PictureEncoder(nn.Module):
    """Strided convolutions from a square picture down to 4 x 4, and a linear layer."""

    def __init__(self, side: int, channels: int, outputs: int):
        super().__init__()
        widths = _widths(side, channels)
        layers: list[nn.Module] = []
        for inner, outer in zip([3, *widths], widths, strict=False):
            layers += [nn.Conv2d(inner, outer, 4, stride=2, padding=1), nn.GroupNorm(1, outer), nn.SiLU()]
        self.layers = nn.Sequential(*layers, nn.Flatten(), nn.Linear(widths[-1] * _LEAST_SIDE**2, outputs))

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        """``picture`` uint8 [n, H, W, 3]; returns [n, outputs]."""
        return self.layers(centred(picture))


class PictureDecoder(nn.Module):
    """The mirror image of :class:`PictureEncoder`."""

    def __init__(self, side: int, channels: int, inputs: int):
        super().__init__()
        widths = _widths(side, channels)[::-1]
        self.widest = widths[0]
        self.first = nn.Linear(inputs, widths[0] * _LEAST_SIDE**2)
        layers: list[nn.Module] = []
        for inner, outer in zip(widths, [*widths[1:], 3], strict=True):
            layers += [nn.GroupNorm(1, inner), nn.SiLU(), nn.ConvTranspose2d(inner, outer, 4, stride=2, padding=1)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` [n, inputs]; returns [n, 3, H, W], about -1 to 1."""
        return self.layers(self.first(x).view(len(x), self.widest, _LEAST_SIDE, _LEAST_SIDE))


def centred(picture: torch.Tensor) -> torch.Tensor:
    """``picture`` uint8 [n, H, W, 3] as floats [n, 3, H, W] from -1 to 1."""
    return picture.movedim(-1, -3).float() / 127.5 - 1


def painted(picture: torch.Tensor) -> torch.Tensor:
    """The inverse of :func:`centred`, rounded."""
    return ((picture.float() + 1) * 127.5).round().clamp(0, 255).to(torch.uint8).movedim(-3, -1)


def square(key: str, shape: tuple[int, ...]) -> int:
    """The side of the pictures ``key``; ``ConfigError`` for one that cannot be halved down to 4."""
    height, width, _ = shape
    halved = height
    while halved > _LEAST_SIDE and halved % 2 == 0:
        halved //= 2
    if height != width or halved != _LEAST_SIDE or height == _LEAST_SIDE:
        raise ConfigError(
            f"pictures {key!r} are {height} x {width}; this model learns square ones of 8, 16, 32, 64 or 128 pixels: "
            "record them so (world.image_size=64)"
        )
    return height


def _widths(side: int, channels: int) -> list[int]:
    """Channels of each halving: ``channels`` first, twice as many each time, at most eight times."""
    count = (side // _LEAST_SIDE).bit_length() - 1
    return [channels * min(2**index, 8) for index in range(count)]
