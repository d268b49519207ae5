"""The content of an episode as digests, one per array: what was recorded is told from what was altered since.

``Content`` maps the path of each array to its digest, and ``snapshots/<step>`` to that of each checkpoint. Digests are
64 bits of blake2b over dtype, row shape and bytes as they lie in the file (of frames: their compressed chunks).
"""

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import numpy as np

from simeval.tape import Frames

Content = Mapping[str, str]
"""Path of an array, or of a checkpoint -> digest. Empty where the trace keeps no digests."""

_FRAMES = "frames "


def digest(array: np.ndarray) -> str:
    """The digest of rows ``[N, …]``."""
    found = blake2b(f"{array.dtype.str}{array.shape[1:]}".encode(), digest_size=8)
    found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def frames_digest(frames: Frames) -> str:
    """The digest of compressed rows, which says that it is one (see :func:`is_of_frames`)."""
    found = blake2b(f"{frames.dtype.str}{frames.shape}{frames.rows_per_chunk}".encode(), digest_size=8)
    for chunk in frames.chunks:
        found.update(chunk)
    return _FRAMES + found.hexdigest()


def is_of_frames(digest: str) -> bool:
    """Whether a digest is one of compressed rows."""
    return digest.startswith(_FRAMES)


def checkpoint_digest(data: bytes) -> str:
    """The digest of a checkpoint's bytes."""
    return blake2b(data, digest_size=8).hexdigest()


def checkpoint_path(step: int) -> str:
    """Under what a content has the checkpoint kept at ``step``."""
    return f"snapshots/{step}"


def content_text(content: Content) -> str:
    """A content as JSON text; empty where there is none."""
    return json.dumps(dict(content), separators=(",", ":")) if content else ""


def content_from(data: Any) -> Content:
    """A content from JSON data; ``ValueError`` if it is none."""
    if not isinstance(data, dict) or not all(isinstance(value, str) for value in data.values()):
        raise ValueError("its content is no mapping of paths to digests")
    return data
