"""Files of others are opened only where they are files; a pipe in their place is not waited for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dflash_suite.core import settings
from dflash_suite.core.errors import CheckpointError, DflashError
from dflash_suite.core.options import LoadOptions, QuantizeOptions, parse_speculation
from dflash_suite.core.regular_files import open_regular, read_regular, read_text
from dflash_suite.drafters.pair import load_pair
from dflash_suite.drafters.slab.listing import list_slabs
from dflash_suite.drafters.slab.store import slab_places
from tests.kit.doctor_pairs import edit_json, look, save_pair
from tests.kit.mutations import at_most

SECONDS = 10
OPENED = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "model.safetensors",
    "model-00002-of-00002.safetensors",
    "model.safetensors.index.json",
    "drafter/config.json",
    "drafter/model.safetensors",
    "drafter/model.safetensors.index.json",
)
"""Everything that a load may open, whether or not a tiny pair has it."""


def pipe(path: Path) -> None:
    """A pipe that nobody writes into."""
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def folder(path: Path) -> None:
    """A folder of that name."""
    path.unlink(missing_ok=True)
    path.mkdir()


def endless(path: Path) -> None:
    """A device that never ends."""
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


def nowhere(path: Path) -> None:
    """A link whose end is gone, as in a hub cache that was cleared by halves."""
    path.unlink(missing_ok=True)
    path.symlink_to("gone")


@pytest.mark.thinned(3)
@pytest.mark.parametrize("kind", [pipe, folder, endless, nowhere])
@pytest.mark.parametrize("name", OPENED)
def test_what_is_no_file_is_an_error_and_not_waited_for(
    name: str, kind: Callable[[Path], None], tmp_path: Path
) -> None:
    pair = save_pair(tmp_path / "pair")
    kind(pair / name)
    loading = LoadOptions(model=str(pair), speculation="dflash", exact=False)
    with at_most(SECONDS), pytest.raises(DflashError) as found:
        load_pair(loading)
    assert Path(name).name in str(found.value)
    with at_most(SECONDS):
        routes = {route.requested: route.route for route in look(pair).routes}
    assert routes["dflash"] is None


@pytest.mark.parametrize("kind", [pipe, folder, endless])
def test_settings_slabs_and_probes_likewise(kind: Callable[[Path], None], tmp_path: Path) -> None:
    pair = save_pair(tmp_path / "pair")
    kind(tmp_path / settings.FILE_NAME)
    for place in slab_places(pair / "drafter", QuantizeOptions()):
        place.parent.mkdir(parents=True, exist_ok=True)
        kind(place)
    with at_most(SECONDS):
        with pytest.raises(DflashError, match="cannot be read"):
            settings.read_settings(tmp_path)
        list_slabs(pair / "drafter")
        assert look(pair).routes


def test_a_file_is_read_as_it_stands(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"\xef\xbb\xbf" + "é\r\n".encode())
    (tmp_path / "link").symlink_to(file)
    with open_regular(tmp_path / "link") as stream:
        assert stream.read() == read_regular(file)
    assert read_text(file, "utf-8-sig") == "é\r\n"


@pytest.mark.parametrize(
    "name",
    ["/etc/passwd", "../other.safetensors", "a/../../b", "..\\b", "C:\\x", "", 7, None, ["a"],
     "x" * 256, "\x00", "\ud800", "a" * 5000],
    ids=repr,
)  # fmt: skip
@pytest.mark.parametrize("place", ["", "drafter"])
def test_an_index_names_files_of_its_own_directory(
    name: object, place: str, tmp_path: Path
) -> None:
    """Another directory's shards are never read, and no name is too long to be refused."""
    pair = save_pair(tmp_path / "pair")
    index = pair / place / "model.safetensors.index.json"
    edit_json(index, {"weight_map": {"fc.weight": name}})
    loading = LoadOptions(model=str(pair), speculation="dflash", exact=False)
    with pytest.raises(CheckpointError, match=r"model\.safetensors\.index\.json is not an index"):
        load_pair(loading)
    routes = {route.requested: route.route for route in look(pair).routes}
    assert routes["dflash"] is None


def test_the_file_of_a_head_is_in_the_targets_directory(tmp_path: Path) -> None:
    pair = save_pair(tmp_path / "pair")
    (pair / "mtp.safetensors").rename(tmp_path / "mtp.safetensors")
    loading = LoadOptions(model=str(pair), speculation="mtp", exact=False)
    for name in ("../mtp.safetensors", str(tmp_path / "mtp.safetensors"), "x" * 300):
        edit_json(pair / "config.json", {"mlx_lm_extra_tensors": {"mtp_file": name}})
        with pytest.raises(CheckpointError, match="mtp_file"):
            load_pair(loading)


def test_a_link_that_lies_in_the_directory_is_followed(tmp_path: Path) -> None:
    """Its owner made it: hub caches are made of such links."""
    pair = save_pair(tmp_path / "pair")
    for name in ("model.safetensors", "drafter/model.safetensors", "mtp.safetensors"):
        blob = tmp_path / name.replace("/", "-")
        (pair / name).rename(blob)
        (pair / name).symlink_to(blob)
    shards = {"weight_map": {"fc.weight": "model.safetensors"}}
    edit_json(pair / "drafter" / "model.safetensors.index.json", shards)
    edit_json(pair / "config.json", {"mlx_lm_extra_tensors": {"mtp_file": "mtp.safetensors"}})
    for asked, route in (("dflash", "dflash2"), ("mtp", "mtp")):
        value = parse_speculation(asked)
        loading = LoadOptions(model=str(pair), speculation=value, exact=False)
        assert load_pair(loading).route.route == route
