"""`dflash generate`: options -> one request -> text on stdout, everything else on stderr."""

from __future__ import annotations

import json
import logging
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...core.errors import OptionError
from ...core.options import DEFAULT_KERNELS, GenerateOptions, parse_mtp_hidden, parse_speculation
from ...core.sampling_options import SamplingOptions
from ...core.stats import Chunk, PrefillProgress
from ..input.prompt import encode_prompt, read_prompt
from ..options.sampling import (
    FrequencyPenaltyOption,
    LogitBiasOption,
    MinPOption,
    PenaltyWindowOption,
    PresencePenaltyOption,
    RepetitionPenaltyOption,
    SeedOption,
    TemperatureOption,
    TopKOption,
    TopPOption,
    parse_logit_bias,
)
from ..options.settings import format_settings
from ..options.shared import (
    BlockSizeOption,
    DrafterBitsOption,
    DrafterOption,
    DraftTokensOption,
    DtypeOption,
    ExactOption,
    GateOption,
    KernelsOption,
    ModelOption,
    MtpHiddenOption,
    MtpOption,
    PromptFileOption,
    ReasoningOption,
    RequestsOption,
    SpeculationOption,
    StoredProbeOption,
)
from ..text.footer import format_accept_profile, format_footer, format_phases, print_note
from ..text.progress import Progress

if TYPE_CHECKING:
    from ...core.decode.loop import Generation
    from ...drafters.pair import Pair

SCHEMA = "dflash.generate/1"
CANCELLED_EXIT_CODE = 130


def generate(
    context: typer.Context,
    prompt: Annotated[
        str | None,
        typer.Argument(help="Text to answer; - reads stdin. Omitted: a pipe, or a built-in one."),
    ] = None,
    model: ModelOption = None,
    drafter: DrafterOption = None,
    drafter_bits: DrafterBitsOption = None,
    speculation: SpeculationOption = "auto",
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", "-n", min=1, help="Most tokens to emit.")
    ] = GenerateOptions.max_tokens,
    block_size: BlockSizeOption = None,
    draft_tokens: DraftTokensOption = None,
    gate: GateOption = GenerateOptions.gate,
    stored_probe: StoredProbeOption = True,
    mtp: MtpOption = None,
    mtp_hidden: MtpHiddenOption = "post",
    stop: Annotated[
        list[str] | None,
        typer.Option("--stop", metavar="TEXT", help="End before this text; may be repeated."),
    ] = None,
    system: Annotated[
        str | None, typer.Option("--system", metavar="TEXT", help="System message (chat only).")
    ] = None,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--raw",
            help="A chat turn through the tokenizer's template, or the text as it stands. "
            "Default: chat where there is a template.",
            show_default=False,
        ),
    ] = None,
    reasoning: ReasoningOption = None,
    temperature: TemperatureOption = SamplingOptions.temperature,
    top_k: TopKOption = SamplingOptions.top_k,
    top_p: TopPOption = SamplingOptions.top_p,
    min_p: MinPOption = SamplingOptions.min_p,
    seed: SeedOption = SamplingOptions.seed,
    repetition_penalty: RepetitionPenaltyOption = SamplingOptions.repetition_penalty,
    presence_penalty: PresencePenaltyOption = SamplingOptions.presence_penalty,
    frequency_penalty: FrequencyPenaltyOption = SamplingOptions.frequency_penalty,
    penalty_window: PenaltyWindowOption = SamplingOptions.penalty_window,
    logit_bias: LogitBiasOption = None,
    prompt_file: PromptFileOption = None,
    requests: RequestsOption = None,
    dtype: DtypeOption = "auto",
    kernels: KernelsOption = DEFAULT_KERNELS,
    exact: ExactOption = None,
    prefill_step_size: Annotated[
        int, typer.Option("--prefill-step-size", min=1, help="Prompt tokens a prefill pass.")
    ] = GenerateOptions.prefill_step_size,
    show_settings: Annotated[
        bool,
        typer.Option("--show-settings", help="Show each setting, where it comes from, and stop."),
    ] = False,
    stats: Annotated[
        bool, typer.Option("--stats", help="Also show acceptance by draft position.")
    ] = False,
    profile: Annotated[
        bool,
        typer.Option("--profile", help="Time each phase, waiting for the device; no tok/s then."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON document on stdout instead of text.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Nothing on stderr but errors.")
    ] = False,
) -> None:
    """Decode a prompt, several tokens per target pass, the text exactly the target's own.

    The answer streams to stdout; progress and the footer go to stderr.
    """
    if show_settings:
        print(format_settings(context))
        return
    options = GenerateOptions(
        max_tokens=max_tokens,
        block_size=block_size,
        draft_tokens=draft_tokens,
        gate=gate,
        prefill_step_size=prefill_step_size,
        stop=tuple(stop or ()),
        profile=profile,
        sampling=SamplingOptions(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            seed=seed,
            repetition_penalty=repetition_penalty,
            presence_penalty=presence_penalty,
            frequency_penalty=frequency_penalty,
            penalty_window=penalty_window,
            logit_bias=parse_logit_bias(logit_bias),
        ),
    )
    requested, hidden = parse_speculation(speculation), parse_mtp_hidden(mtp_hidden)
    if requests is not None and (prompt is not None or prompt_file is not None):
        raise OptionError("--requests brings its own prompts; give no other one")
    source = None
    if requests is None:
        source = read_prompt(prompt, prompt_file, patient=model is not None)
        if source.note and not quiet:
            print_note(source.note)
    progress = Progress(enabled=not quiet)
    with progress:
        from ...drafters.pair import load_pair

        report = progress.report(notes=not quiet)
        pair = load_pair(
            model,
            drafter,
            requested,
            dtype,
            progress=progress.say,
            drafter_bits=drafter_bits,
            report=report,
            mtp=mtp,
            mtp_hidden=hidden,
            reserve=options.gated or requests is not None,
            kernels=kernels,
            stored_probe=stored_probe,
            exact=exact,
            checked=options,
        )
    for note in () if quiet else pair.target.config.repairs.notes:
        print_note(note)
    # A prompt longer than the tokenizer's nominal length is legal here; transformers warns.
    logging.getLogger("transformers").setLevel(logging.ERROR)
    if source is None:
        from ...drafters.engine import from_pair
        from .requests import serve

        if serve(from_pair(pair), str(requests), options, requested):
            raise typer.Exit(1)
        return
    ids = encode_prompt(pair.tokenizer, source.text, chat=chat, system=system, reasoning=reasoning)
    generation = pair.generate(ids, options)
    text, cancelled = _run(generation, progress, echo=not as_json)
    if as_json:
        print(json.dumps(_document(pair, generation, text), ensure_ascii=False))
    elif not quiet:
        _print_footer(pair, generation, mtp, stats=stats)
    if cancelled:
        raise typer.Exit(CANCELLED_EXIT_CODE)


def _run(generation: Generation, progress: Progress, *, echo: bool) -> tuple[str, bool]:
    """(text, whether Ctrl-C ended it); the text is written as it comes where `echo`."""
    pieces: list[str] = []

    def put(text: str) -> None:
        pieces.append(text)
        if echo and text:
            sys.stdout.write(text)
            sys.stdout.flush()

    if hasattr(sys.stdout, "reconfigure"):  # never fail on a terminal that is not UTF-8
        sys.stdout.reconfigure(errors="backslashreplace")
    cancelled = False
    try:
        with progress:
            for event in generation:
                if isinstance(event, PrefillProgress):
                    progress.prefill(event.done, event.total)
                elif isinstance(event, Chunk):
                    progress.stop()
                    put(event.text)
    except KeyboardInterrupt:
        cancelled = True
        put(generation.emitter.flush())
    if echo:
        put("" if "".join(pieces[-1:]).endswith("\n") else "\n")
    return "".join(pieces), cancelled


def _document(pair: Pair, generation: Generation, text: str) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "text": text,
        "token_ids": generation.emitter.token_ids,
        "finish_reason": generation.emitter.reason,
        "prompt_tokens": generation.stats.prompt_tokens,
        "speculation": {
            **pair.route.to_dict(),
            "block": generation.block.to_dict(),
            "drafter_bits": getattr(pair.drafter, "bits", None),
        },
        "identity": pair.promise.to_dict(generation),
        "sampling": generation.options.sampling.to_dict(),
        "stats": generation.stats.to_dict(),
    }


def _print_footer(pair: Pair, generation: Generation, mtp: str | None, *, stats: bool) -> None:
    said = pair.promise.statement(generation)
    note = "" if said is None else f"identity with plain decoding: {said}"
    bits = getattr(pair.drafter, "bits", None)
    block = generation.block.describe() + (f", {bits}-bit drafter" if bits else "")
    print_note(format_footer(pair.route, generation.stats, block, note))
    for ignored in pair.route.notes(generation.options, mtp):
        print_note(ignored)
    if stats:
        print_note(format_accept_profile(generation.stats))
    if generation.stats.phase_sec:
        print_note(format_phases(generation.stats))
