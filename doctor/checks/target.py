"""A target alone: what the loader would refuse, and what would run worse than it could."""

from __future__ import annotations

from importlib.metadata import version

from ...core.checkpoint.safetensors_headers import listing
from ...core.checkpoint.tokenizer_files import require_tokenizer
from ...core.decode.chat import parse_template
from ...core.errors import PromptError
from ...core.json_values import read_json
from ..results import CheckResult
from ..units import readable
from .check import Check, Words, check
from .memory import CONTEXT_TOKENS, resident, target_bytes
from .once import reach
from .subjects import TargetSubject
from .tokenizer import template_variables

SAME_RELEASE = "fetch config.json and weights of one and the same release"


@check(
    "target.kind",
    "a target of a supported model_type, as config.json and *.safetensors",
    "give a supported target; a drafter goes to --drafter; GGUF: take the original checkpoint",
)
def kind(say: Words, target: TargetSubject) -> CheckResult:
    """Swapped arguments, GGUF and foreign containers show here."""
    return say.passed(target.kind)


@check(
    "target.config",
    "every key that the loader reads, of its type, without contradictions",
    "fetch config.json again, or correct the key that is named",
)
def config(say: Words, target: TargetSubject) -> CheckResult:
    """Keys of config.json and generation_config.json."""
    found = target.config
    most = found.max_positions
    return say.passed(
        f"{found.num_hidden_layers} layers, hidden {found.hidden_size}, vocabulary "
        f"{found.vocab_size}, " + (f"{most:,} positions" if most else "positions not stated")
    )


@check(
    "target.rope",
    "rope settings where mlx-lm looks for them, each with an effect",
    "nothing to do: the loader applies what is named; other programs may read this file wrongly",
)
def rope(say: Words, target: TargetSubject) -> CheckResult:
    """mlx-lm takes a default where it does not find a setting, and says nothing."""
    found = target.config.repairs
    if found.notes:
        return say.warned("; ".join(found.notes))
    return say.passed("; ".join(dict.fromkeys(str(rope) for rope in found.ropes.values())))


@check(
    "target.geometry",
    "sizes of which mlx-lm can build the model: heads, groups, rope",
    "correct the sizes in config.json, or fetch it again",
)
def geometry(say: Words, target: TargetSubject) -> CheckResult:
    """Head and rope geometry, by building mlx-lm's own modules without weights."""
    layers = target.model.layers
    return say.passed(f"mlx-lm builds {len(layers)} layers of it")


@check(
    "target.files",
    "the *.safetensors files that mlx-lm opens, and every shard of the index",
    "finish the download: the missing files belong beside config.json",
)
def files(say: Words, target: TargetSubject) -> CheckResult:
    """Weights are there; shards that the index names too."""
    return say.passed(f"{len(target.files)} weight file{'s' * (len(target.files) > 1)}")


@check(
    "target.headers",
    "file sizes that fit their headers, offsets in order, known dtypes",
    "fetch the file that is named again",
)
def headers(say: Words, target: TargetSubject) -> CheckResult:
    """Truncated and damaged files."""
    size = sum(header.file_bytes for header in target.headers)
    return say.passed(f"{len(target.tensors)} tensors, {readable(size)}")


@check(
    "target.index",
    "an index whose tensors are in the shards that it says",
    "fetch model.safetensors.index.json again, or remove it",
)
def index(say: Words, target: TargetSubject) -> CheckResult:
    """mlx-lm opens all shards whatever the index says; other programs do not."""
    reach(target.files)
    path = target.directory / "model.safetensors.index.json"
    if not path.is_file():
        return say.passed("no index")
    weight_map = read_json(path)["weight_map"]
    there = {(name, info.file.name) for name, info in target.tensors.items()}
    wrong = sorted(name for name, file in weight_map.items() if (name, file) not in there)
    unlisted = sorted(target.tensors.keys() - weight_map.keys())
    if wrong or unlisted:
        return say.warned(
            f"{len(wrong)} tensors are not where the index says, {len(unlisted)} are not in it: "
            + listing([*wrong, *unlisted], 3)
        )
    return say.passed(f"{len(weight_map)} tensors, each where the index says")


@check(
    "target.quantization",
    "a 'quantization' block that fits the packed tensors, or neither",
    "take config.json and weights of one conversion",
)
def quantization(say: Words, target: TargetSubject) -> CheckResult:
    """The block of config.json against what is on disk."""
    reach(target.quantized)
    packs = [name for name in target.tensors if name.endswith(".scales")]
    block = target.config.raw.get("quantization")
    if block is None:
        return say.passed("not quantized" if not packs else "packed, and mlx-lm infers how")
    if not packs:
        return say.warned("config.json states a quantization, and no tensor is packed")
    overrides = sum(isinstance(value, dict) for value in block.values())
    packed = {name.removesuffix(".scales") for name in packs}
    wrong = [
        path for path, value in block.items() if isinstance(value, dict) and path not in packed
    ]
    wrong += [path for path, value in block.items() if value is False and path in packed]
    if wrong:
        return say.warned(
            f"the block speaks otherwise than the tensors of {listing(sorted(wrong), 3)}"
        )
    return say.passed(
        f"{block.get('mode', 'affine')}, {block['bits']} bits, groups of {block['group_size']}, "
        f"{overrides} overrides, {len(packs)} packed tensors"
    )


@check(
    "target.tensors",
    "every tensor that mlx-lm's model has, in its shape, and no other",
    SAME_RELEASE,
)
def tensors(say: Words, target: TargetSubject) -> CheckResult:
    """mlx-lm's strict load, on headers alone."""
    reach(target.filled)
    return say.passed(f"all {len(target.tensors)} tensors accounted for")


@check(
    "target.forward",
    "settings with which a pass can be put together, by mlx-lm and by the suite alike",
    "correct the setting in config.json, or fetch it again",
)
def forward(say: Words, target: TargetSubject) -> CheckResult:
    """The loader's own passes, put together and not computed: no weight is read."""
    return say.passed(f"{len(target.traced.backbone.layers)} layers, every shape fits")


@check(
    "target.tied",
    "an lm_head where embeddings are not tied, none where they are",
    "set tie_word_embeddings to what the model was trained with",
)
def tied(say: Words, target: TargetSubject) -> CheckResult:
    """Tied embeddings make mlx-lm drop an lm_head that is there."""
    reach(target.filled)
    text = target.config.raw.get("text_config") or target.config.raw
    stated = text.get("tie_word_embeddings", target.config.raw.get("tie_word_embeddings"))
    stored = any(name.split(".")[-2:-1] == ["lm_head"] for name in target.tensors)
    if stated and stored:
        return say.warned("tie_word_embeddings is true, so the stored lm_head is not used")
    return say.passed("tied" if stated else "own lm_head" if stored else "the family's default")


@check(
    "target.tokenizer",
    "tokenizer files that can be read, ids inside the embedding",
    "fetch the tokenizer files of the original repository",
)
def tokenizer(say: Words, target: TargetSubject) -> CheckResult:
    """The loader's own look; then the largest id against the embedding's rows."""
    opened, found = target.opened_tokenizer, require_tokenizer(target.directory)
    top = target.tokenizer.top_id
    if top is not None and top >= target.config.vocab_size:
        return say.warned(f"id {top} is outside the embedding of {target.config.vocab_size} rows")
    shown = f"{found[0]}, ids up to {top}" if top is not None else ", ".join(found)
    # What the loader puts right asks nothing of the user.
    return say.passed("; ".join((shown, f"transformers {version('transformers')}", *opened.notes)))


@check(
    "target.eos",
    "ids that end a turn, inside the vocabulary",
    "add eos_token_id to generation_config.json, or give --stop and --max-tokens",
)
def eos(say: Words, target: TargetSubject) -> CheckResult:
    """As the loader has them."""
    ids = sorted(target.opened_tokenizer.eos_ids(target.config))
    if not ids:
        return say.warned("no eos id anywhere: only --max-tokens ends an answer")
    if outside := [index for index in ids if not 0 <= index < target.config.vocab_size]:
        return say.warned(f"eos ids {outside} are outside the vocabulary")
    return say.passed(f"stops at {', '.join(map(str, ids))}")


@check(
    "target.template",
    "a chat template whose markers are tokens",
    "fetch chat_template.jinja or tokenizer_config.json again, or use --raw",
)
def template(say: Words, target: TargetSubject) -> CheckResult:
    """Which settings the template reads; a marker that is not a token never ends a turn."""
    text, files_of = target.opened_tokenizer.template, target.tokenizer
    if text is None:
        return say.warned("no chat template: prompts are continued as raw text")
    try:
        parse_template(text)
    except PromptError as exc:  # raw text still runs
        return say.warned(str(exc))
    if files_of.added and (unknown := files_of.unknown_markers(text)):
        return say.warned(f"the template writes {listing(unknown, 3)}, which is not a token")
    names = template_variables(text)
    return say.passed(f"there; reads {', '.join(names) or 'no reasoning setting'}")


@check(
    "target.memory",
    f"weights and the caches of {CONTEXT_TOKENS} tokens that fit into the device's memory",
    "take a smaller or quantized target",
)
def memory(say: Words, target: TargetSubject) -> CheckResult:
    """In the precision that --dtype auto runs: float32 on the CPU."""
    needed, room = target_bytes(target), target.machine.memory_bytes
    found = f"{readable(needed)} of {readable(room)}{resident(target.machine.backend)}"
    return say.passed(found) if needed <= room else say.warned(found)


TARGET_CHECKS: tuple[Check[TargetSubject], ...] = (
    kind, config, rope, geometry, tokenizer, files, headers, index, quantization, tensors, forward,
    tied, eos, template, memory,
)  # fmt: skip
