"""One prompt answered: text on stdout, everything else on stderr; or a file of requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from ...core.errors import OptionError
from ...core.options import GenerateOptions, LoadOptions
from ...core.stats import Chunk, PrefillProgress
from ..input.prompt import PromptInput, encode_prompt, read_prompt, reasoning_note
from ..text.footer import format_accept_profile, format_completion, format_phases, print_note
from ..text.progress import Progress
from ..text.terminal import AnswerWriter, print_document
from .exit_codes import CANCELLED_EXIT_CODE
from .loading import load_engine

if TYPE_CHECKING:
    from ...drafters.engine import Answer, Engine
    from ...drafters.request import Completion

SCHEMA = "dflash.generate/1"


@dataclass(frozen=True)
class Shown:
    """What is shown of an answer beside its text.

    stats: acceptance by draft position too; as_json: a document in place of the text; quiet:
    nothing on stderr but errors.
    """

    stats: bool = False
    as_json: bool = False
    quiet: bool = False


@dataclass(frozen=True)
class GenerateCall:
    """One call of `dflash generate`."""

    loading: LoadOptions
    options: GenerateOptions
    asked: PromptInput
    shown: Shown


def run_generate(call: GenerateCall) -> None:
    """Load, answer, and show. Raises typer.Exit with the exit code where it is not 0."""
    asked, quiet = call.asked, call.shown.quiet
    if asked.requests is not None and (asked.prompt is not None or asked.file is not None):
        raise OptionError("--requests brings its own prompts; give no other one")
    if asked.requests is not None and call.shown.stats:
        raise OptionError("each result of --requests holds its statistics; leave out --stats")
    source = None
    if asked.requests is None:
        source = read_prompt(asked.prompt, asked.file, patient=call.loading.model is not None)
        if source.note and not quiet:
            print_note(source.note)
    progress = Progress(enabled=not quiet)
    engine = load_engine(call.loading, call.options, progress, quiet=quiet)
    if source is None:
        from .requests import serve

        if serve(engine, asked, call.options, call.loading.speculation):
            raise typer.Exit(1)
        return
    ids = encode_prompt(engine.tokenizer, source.text, asked)
    done, cancelled = _answer(engine, ids, call, progress)
    if call.shown.as_json:
        print_document({"schema": SCHEMA, **done.to_dict(), "notes": _notes(engine, done, call)})
    elif not quiet:
        _print_footer(engine, done, call)
        said = reasoning_note(engine.tokenizer, source.text, asked) if call.shown.stats else None
        if said is not None:
            print_note(said)
    if cancelled:
        raise typer.Exit(CANCELLED_EXIT_CODE)


def _answer(
    engine: Engine, ids: list[int], call: GenerateCall, progress: Progress
) -> tuple[Completion, bool]:
    """(the finished request, whether Ctrl-C ended it)."""
    from ...drafters.request import make_request

    speculation = call.loading.speculation
    request = make_request(call.options, speculation, prompt=ids, reuse=False)
    answer = engine.start(request)
    cancelled = _run(answer, progress, echo=not call.shown.as_json)
    return answer.completion(), cancelled


def _run(answer: Answer, progress: Progress, *, echo: bool) -> bool:
    """Whether Ctrl-C ended it; the text is written as it comes where `echo`."""
    writer = AnswerWriter() if echo else None

    def put(text: str) -> None:
        if writer is not None:
            writer.write(text)

    cancelled = False
    try:
        with progress:
            for event in answer:
                if isinstance(event, PrefillProgress):
                    progress.prefill(event.done, event.total)
                elif isinstance(event, Chunk):
                    progress.stop()
                    put(event.text)
    except KeyboardInterrupt:
        cancelled = True
        put(answer.flush())
    if writer is not None:
        writer.finish()
        put("" if answer.text.endswith("\n") else "\n")
    return cancelled


def _print_footer(engine: Engine, done: Completion, call: GenerateCall) -> None:
    print_note(format_completion(done))
    for said in _notes(engine, done, call):
        print_note(said)
    if call.shown.stats:
        print_note(format_accept_profile(done.stats))
    if done.stats.phase_sec:
        print_note(format_phases(done.stats))


def _notes(engine: Engine, done: Completion, call: GenerateCall) -> list[str]:
    """What is to be said of the request beside its figures."""
    beyond = engine.position_notes(done.stats.prompt_tokens, len(done.token_ids))
    return [*beyond, *done.route.notes(call.options, call.loading)]
