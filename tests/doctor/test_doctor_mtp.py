"""The doctor on MTP heads: where they are, in which layout, and what a config only promises."""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx
import pytest

from dflash_suite.doctor.diagnose import diagnose
from dflash_suite.doctor.results import CheckResult, Diagnosis
from tests.kit.doctor_pairs import SOUND, look, save_head, save_pair, troubles
from tests.kit.tiny import HYBRID, save_checkpoint
from tests.kit.tiny_mtp import head_tensors, prefixed

pytestmark = pytest.mark.quick


def finding(diagnosis: Diagnosis, name: str) -> CheckResult:
    """One check's result."""
    return next(check for check in diagnosis.checks if check.name == name)


def routes(diagnosis: Diagnosis) -> dict[str, str | None]:
    """Requested value -> route."""
    return {route.requested: route.route for route in diagnosis.routes}


def promise(target: Path) -> None:
    """What every published Qwen3.5 config.json says, whether or not the head is there."""
    file = target / "config.json"
    raw = json.loads(file.read_text(encoding="utf-8"))
    raw["text_config"]["mtp_num_hidden_layers"] = 1
    file.write_text(json.dumps(raw), encoding="utf-8")


def test_a_head_that_was_promised_and_dropped(tmp_path: Path) -> None:
    """With a drafter it is told, without one it is a warning, with what to do."""
    pair = save_pair(tmp_path / "pair")
    (pair / "mtp.safetensors").unlink()
    promise(pair)
    told = look(pair)
    assert not troubles(told) and "conversion drops them" in finding(told, "mtp.head").found
    (pair / "drafter").rename(pair / "elsewhere")
    found = troubles(look(pair))
    assert set(found) == {"pair.drafter", "mtp.head"}
    assert "mtp.safetensors" in found["mtp.head"].fix


@pytest.mark.parametrize(("drafter", "head"), [(1, 0), (0, 1), (1, 1), (0, 0)])
def test_only_a_drafter_only_a_head_both_and_neither(
    tmp_path: Path, drafter: int, head: int
) -> None:
    """The routes are those of what is there."""
    pair = save_pair(tmp_path / "pair")
    if not drafter:
        (pair / "drafter").rename(pair / "elsewhere")
    if not head:
        (pair / "mtp.safetensors").unlink()
    assert routes(look(pair)) == {
        "auto": "dflash2" if drafter else "mtp" if head else "none",
        "dflash": "dflash2" if drafter else None,
        "mtp": "mtp" if head else None,
        "none": "none",
    }


@pytest.mark.parametrize("is_original", [True, False])
def test_the_norm_convention_is_told_by_the_layout(tmp_path: Path, is_original: bool) -> None:
    """HF: format pt and conv1d [C, 1, K]; converted: format mlx and conv1d [C, K, 1] (5.3)."""
    target = save_checkpoint(tmp_path / "target")
    file = str(target / "model.safetensors")
    arrays = mx.load(file)
    assert isinstance(arrays, dict)
    if is_original:
        arrays = {
            name.replace("language_model.model.", "model.language_model."): (
                array.swapaxes(1, 2) if "conv1d" in name else array
            )
            for name, array in arrays.items()
        }
        arrays["lm_head.weight"] = arrays.pop("language_model.lm_head.weight")
    arrays |= prefixed(head_tensors(hf=is_original), "mtp.")
    mx.eval(arrays)
    if not is_original:  # a converted pack that kept its head
        arrays = {
            f"language_model.{name}" if name.startswith("mtp.") else name: array
            for name, array in arrays.items()
        }
    mx.save_safetensors(file, arrays, metadata={"format": "pt" if is_original else "mlx"})
    diagnosis = look(target)
    assert set(troubles(diagnosis)) <= {"pair.drafter", "target.template"}
    expected = "stored less one (HF)" if is_original else "stored as they are (MLX)"
    assert finding(diagnosis, "mtp.norms").found == expected
    assert routes(diagnosis)["mtp"] == "mtp"


def test_the_values_tell_whatever_the_layout_says(tmp_path: Path) -> None:
    """MTPLX-like: an original head in a file that MLX wrote; doctor passed it as converted."""
    target = save_checkpoint(tmp_path / "target")
    file = str(target / "model.safetensors")
    arrays = mx.load(file)
    assert isinstance(arrays, dict)
    arrays |= prefixed(head_tensors(), "language_model.mtp.")
    mx.eval(arrays)
    mx.save_safetensors(file, arrays, metadata={"format": "mlx"})
    norms = finding(look(target), "mtp.norms")
    assert norms.status == "pass" and norms.found == "stored less one (HF)"


def test_a_folder_of_its_own_is_given_as_the_drafter(tmp_path: Path) -> None:
    """mlx-vlm's standalone heads: bare names, --drafter names the folder."""
    target = save_checkpoint(tmp_path / "target")
    folder = tmp_path / "head"
    folder.mkdir()
    text = json.loads((target / "config.json").read_text(encoding="utf-8"))["text_config"]
    config = {"model_type": "qwen3_5_mtp", "text_config": text}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    mx.save_safetensors(
        str(folder / "model.safetensors"), head_tensors(hf=False), metadata={"format": "mlx"}
    )
    assert HYBRID["model_type"] == text["model_type"]
    diagnosis = diagnose(str(target), str(folder), SOUND)
    assert set(troubles(diagnosis)) == {"target.template"}
    assert finding(diagnosis, "mtp.head").found.endswith(f"tensors, {folder}")
    assert routes(diagnosis) == {"auto": "mtp", "dflash": None, "mtp": "mtp", "none": "none"}


def test_a_head_is_found_beside_a_bad_drafter(tmp_path: Path) -> None:
    """auto goes to the head, and says why not to the drafter."""
    pair = save_pair(tmp_path / "pair")
    (pair / "drafter" / "model.safetensors").unlink()
    save_head(pair)
    diagnosis = look(pair)
    assert set(troubles(diagnosis)) == {"drafter.files"}
    auto = next(route for route in diagnosis.routes if route.requested == "auto")
    assert auto.route == "mtp" and "drafter.files failed" in auto.reason
