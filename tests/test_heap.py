"""Text of variable length, as earlier traces have it, is read where its heap is whole and refused where it is not."""

import struct
import subprocess
import sys
from pathlib import Path

import h5py
import pytest

from simeval.errors import TraceError
from simeval.heap import check_heaps
from simeval.noise import NOISE_LAYOUT
from simeval.shard import SCHEMA
from simeval.shard_reader import ShardArray, open_shard

TEXTS = [f"episode {number}" * number for number in range(40)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "old.h5"
    with h5py.File(path, "w") as written:
        written.attrs.update({"schema": SCHEMA, "noise_layout": NOISE_LAYOUT, "run_id": "a"})
        written.create_dataset("text", data=TEXTS, dtype=h5py.string_dtype())
    return path


def read(path: Path) -> list[str]:
    with h5py.File(path) as opened:
        return [text.decode() for text in ShardArray(path, opened.id, "text").read(0, len(TEXTS))]


def spoil(path: Path, size: int) -> None:
    """Give the free space at the end of every heap another size."""
    data = bytearray(path.read_bytes())
    begin = data.find(b"GCOL")
    while begin >= 0:
        at, end = begin + 16, begin + struct.unpack_from("<Q", data, begin + 8)[0]
        while at + 16 <= end:
            number, length = struct.unpack_from("<H6xQ", data, at)
            if number == 0:
                struct.pack_into("<Q", data, at + 8, size)
                break
            at += 16 + -(-length // 8) * 8
        begin = data.find(b"GCOL", begin + 1)
    path.write_bytes(data)


def test_whole_heaps_are_read(file: Path) -> None:
    check_heaps(file)
    assert read(file) == TEXTS


@pytest.mark.parametrize("size", [0, 8, 1 << 20, 2**64 - 16])
def test_a_heap_that_leads_nowhere_is_refused_by_name(file: Path, size: int) -> None:
    check_heaps(file)
    spoil(file, size)
    with pytest.raises(TraceError, match=r"old\.h5: the heap at byte \d+.* is damaged"):
        read(file)
    with pytest.raises(TraceError, match="is damaged"), open_shard(file):
        pass


def test_hdf5_alone_would_read_on_without_end(file: Path) -> None:
    spoil(file, 0)
    program = f"import h5py; h5py.File({str(file)!r})['text'][:]"
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run([sys.executable, "-c", program], timeout=5)


def test_a_heap_that_ends_with_the_file_too_early_is_refused(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: data.find(b"GCOL") + 40])
    with pytest.raises(TraceError, match="is damaged"):
        check_heaps(file)
