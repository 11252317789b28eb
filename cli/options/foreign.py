"""Options of other tools, by which newcomers look for what the suite calls otherwise or lacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typer.core import TyperCommand

from ...core.errors import OptionError

MLX_LM: dict[str, str] = {
    "--draft-model": "a drafter is given by --drafter",
    "--num-draft-tokens": "the size of a block is --block-size (DFlash) or --draft-tokens (MTP)",
    "--system-prompt": "a system message is given by --system",
    "--ignore-chat-template": "raw text is asked for by --raw",
    "--use-default-chat-template": "the chat template is the tokenizer's own",
    "--chat-template-config": "the template's variable for reasoning is set by --reasoning",
    "--prefill-response": "an answer that has begun is raw text: give it with --raw",
    "--extra-eos-token": "end before a text with --stop",
    "--verbose": "figures are shown unless --quiet is given; more of them with --stats",
    "--max-kv-size": "caches hold the whole request and are never cut",
    "--kv-bits": "keys and values are not quantized",
    "--kv-group-size": "keys and values are not quantized",
    "--quantized-kv-start": "keys and values are not quantized",
    "--prompt-cache-file": "a prompt's cache is not kept on disk",
    "--xtc-probability": "XTC sampling is not supported",
    "--xtc-threshold": "XTC sampling is not supported",
    "--min-tokens-to-keep": "min-p keeps at least one token",
    "--trust-remote-code": "no code of a model repository is ever run",
    "--revision": "a revision stands behind the hub id: owner/name@revision",
}
"""Options of `mlx_lm.generate`, and what to use in their place."""


class ForeignAwareCommand(TyperCommand):
    """A command that refuses known options of other tools by name, with what to do."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Raises OptionError before an unknown option is refused without a word of advice."""
        known = {name for one in self.params for name in (*one.opts, *one.secondary_opts)}
        refuse_foreign(args, known)
        return super().parse_args(ctx, args)


def refuse_foreign(args: Sequence[str], known: set[str]) -> None:
    """OptionError for the first option that mlx-lm has and this command does not."""
    for arg in args:
        if arg == "--":
            return
        name = arg.partition("=")[0]
        if name in MLX_LM and name not in known:
            raise OptionError(f"{name} is an option of mlx-lm, not of dflash: {MLX_LM[name]}")
