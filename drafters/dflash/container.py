"""What kind of checkpoint a directory holds, told by its config.json alone.

Dispatches on architectures, `dflash_config` and the keys that change the maths; never on
model_type alone or the repository's name. Containers of other
projects are recognised and refused by name, with what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from ...core.checkpoint.families import find_family
from ...core.checkpoint.foreign_formats import refuse_foreign_drafter
from ...core.errors import ConfigError, UnsupportedModel
from ...core.json_values import shown

DrafterKind = Literal["dflash", "dflash2"]

V2_ARCHITECTURES = ("DFlash2DraftModel", "Qwen3DFlash2DraftModel")
V2_KEYS = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")

Z_LAB = "give the drafter in z-lab's layout (config.json with 'dflash_config', and safetensors)"
MTP_TYPES = ("qwen3_5_mtp", "qwen3_next_mtp")

NEUTRAL: dict[str, tuple[object, ...]] = {
    "sample_from_anchor": (False,),
    "sliding_window_non_causal": (),
    "fc_layernorm": (False,),
    "attention_sink_bias": (False, 0),
    "add_swa_attention_sink_bias": (False,),
    "add_full_attention_sink_bias": (False,),
    "attention_value_scale": (1, 1.0),
    "use_swa": (False,),
    "swa_window_size": (),
    "sliding_windows": (),
    "partial_rotary_factor": (1, 1.0),
    "markov_rank": (0,),
    "hidden_act": ("silu",),
    "mlp_bias": (False,),
    "gating": (False,),
    "num_experts": (0,),
    "selector_vocab_size": (),
    "draft_vocab_size": (),
    "target_hidden_size": (),
}
"""Keys that change the maths, and the values under which they change nothing."""
SAME_AS = {
    "selector_vocab_size": "vocab_size",
    "draft_vocab_size": "vocab_size",
    "target_hidden_size": "hidden_size",
}
"""Keys that change nothing where they repeat another one."""


def classify(raw: Mapping[str, Any], file: Path) -> DrafterKind:
    """`dflash` or `dflash2`; UnsupportedModel for anything else, by name."""
    nested = raw.get("dflash_config")
    nested = nested if isinstance(nested, dict) else {}
    architectures = raw.get("architectures") or []
    if not isinstance(architectures, list) or not all(isinstance(n, str) for n in architectures):
        raise ConfigError(
            f"{file}: 'architectures' is {shown(architectures)}, expected a list of names"
        )
    refuse_containers(raw, nested, architectures, file)
    is_v2 = any(name in V2_ARCHITECTURES for name in architectures) or any(
        nested.get(key) or raw.get(key) for key in V2_KEYS
    )
    if not is_v2 and not any(name.startswith("DFlash") for name in architectures) and not nested:
        family = find_family(str(raw.get("model_type")))
        if family is not None and not drafter_signs(raw):
            raise UnsupportedModel(
                f"{file} is a target ({family.model_type}) and not a drafter: give its directory "
                "to --model; mlx_lm.convert quantizes targets"
            )
        raise UnsupportedModel(
            f"{file} is not a DFlash drafter: architectures {architectures or 'missing'} and no "
            "'dflash_config'. Give the drafter's directory to --drafter and the target's to --model"
        )
    refuse_foreign_drafter(raw, file)
    refuse_other_maths(raw, nested, file)
    return "dflash2" if is_v2 else "dflash"


def refuse_containers(
    raw: Mapping[str, Any], nested: Mapping[str, Any], architectures: list[str], file: Path
) -> None:
    """UnsupportedModel that names a container of another project, or another method."""
    model_type = str(raw.get("model_type") or "")
    projector = str(nested.get("projector_type") or raw.get("projector_type") or "dflash").lower()
    names = " ".join(architectures).lower()
    found, advice = "", Z_LAB
    if raw.get("speculators_model_type") or raw.get("speculators_config"):
        found = "a speculators container (vLLM), whose layer ids count from 1"
        advice = f"{Z_LAB}, or convert it: target_layer_ids = aux_hidden_state_layer_ids - 1"
    elif model_type == "muse_glimmer_assistant":
        found = "a Muse assistant container, which keeps fc and hidden_norm under 'encoder.'"
        advice = f"{Z_LAB}; Muse is not a supported target either"
    elif "laguna" in model_type or "laguna" in names:
        found = "a Laguna drafter, with gated heads and a norm for each tap"
    elif "mimo" in model_type or "mimo" in names:
        found = "a MiMo drafter, with attention sinks and scaled values"
    elif projector == "domino" or "domino" in names:
        found = "a Domino drafter, another method than DFlash"
    elif projector == "dspark" or "dspark" in names or raw.get("markov_rank"):
        found = "a DSpark drafter, another method than DFlash"
    elif projector != "dflash":
        found = f"a drafter with projector_type '{projector}'"
    elif model_type in MTP_TYPES:
        found = "a multi-token-prediction head and not a DFlash drafter"
        advice = "use --speculation mtp with its target"
    elif "eagle" in names or "eagle_aux_hidden_state_layer_ids" in {*raw, *nested}:
        found = "an EAGLE-style container, whose layer ids count from 1"
    if found:
        raise UnsupportedModel(f"{file} is {found}: {advice}")


def refuse_other_maths(raw: Mapping[str, Any], nested: Mapping[str, Any], file: Path) -> None:
    """UnsupportedModel for a key that a right forward would follow and this one does not."""
    for key, neutral in NEUTRAL.items():
        for label, place in (("dflash_config.", nested), ("", raw)):
            value = place.get(key)
            same = SAME_AS.get(key)
            if value is None or value in neutral or (same and value == raw.get(same)):
                continue
            raise UnsupportedModel(
                f"{file}: '{label}{key}' is {shown(value)}, which changes the drafter's arithmetic "
                "in a way that is not implemented; its drafts would be bad and nothing would say "
                "so. Give another drafter for this target"
            )


DRAFTER_KEYS = (
    "target_layer_ids",
    "aux_hidden_state_layer_ids",
    "eagle_aux_hidden_state_layer_ids",
    "mask_token_id",
    "dflash_config",
    "speculators_config",
    "speculators_model_type",
    "selector_vocab_size",
    "draft_vocab_size",
    "num_target_layers",
)
"""Keys that no target's config.json has."""


def drafter_signs(raw: Mapping[str, Any]) -> list[str]:
    """What in a config.json says that it is a drafter's, of whatever kind."""
    architectures = raw.get("architectures")
    named = (
        [one for one in architectures if isinstance(one, str)]
        if isinstance(architectures, list)
        else []
    )
    drafts = [one for one in named if "draft" in one.lower() or "eagle" in one.lower()]
    return [*drafts, *(key for key in DRAFTER_KEYS if raw.get(key) is not None)]


def label_note(raw: Mapping[str, Any], kind: str, file: Path) -> str:
    """What to say of a config.json whose keys are another kind's than its `architectures`."""
    named = [str(one) for one in raw.get("architectures") or []]
    if kind != "dflash2" or not named or any(one in V2_ARCHITECTURES for one in named):
        return ""
    return (
        f"{file}: 'architectures' says {', '.join(named)}, and the keys and tensors are DFlash2's; "
        "it is run as dflash2"
    )
