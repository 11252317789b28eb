"""Small versions of slab_torture.py's trials: kill -9, concurrent builders, full disk, flips."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.long.slab_torture import (
    build_concurrently,
    copy_bundled,
    fill_disk,
    flip_bits,
    kill_builders,
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_bundled(tmp_path_factory.mktemp("torture") / "dflash2")


def test_kill_9_leaves_none_the_old_or_the_new_slab(checkpoint: Path) -> None:
    found = kill_builders(checkpoint, 3)
    assert (found.trials, found.wrong, found.strays) == (3, 0, 0), found
    assert found.seen["killed while writing"] > 0


def test_concurrent_builders_end_with_one_slab(checkpoint: Path) -> None:
    found = build_concurrently(checkpoint, 3)
    assert (found.wrong, found.strays) == (0, 0), found
    assert found.seen == {"built": 1, "opened": 2}


def test_a_full_disk_leaves_the_old_slab_or_none(checkpoint: Path) -> None:
    found = fill_disk(checkpoint, 2)
    assert (found.wrong, found.strays) == (0, 0), found
    assert found.seen == {"SlabWriteError": 2}


def test_a_flipped_bit_is_never_used(checkpoint: Path) -> None:
    found = flip_bits(checkpoint, 40)
    assert (found.trials, found.wrong, found.strays) == (40, 0, 0), found
    assert len(found.seen) == 2
