"""A request, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.block import Block
from ..core.decode.chat import Chat
from ..core.errors import PromptError
from ..core.exact.promise import Promise
from ..core.options import GenerateOptions, Speculation
from ..core.sampling_options import SamplingOptions
from ..core.stats import FinishReason, GenerationStats
from .routes import Route


@dataclass(frozen=True)
class Request:
    """One text to answer, and how.

    prompt: raw text or ids; messages: a chat, in place of a prompt; tools and reasoning: of a chat,
    as the fields of Chat. max_tokens to gate: as the fields of GenerateOptions. speculation: the
    drafter of this request. reuse: share the cached rows of the request before, where they begin
    alike. profile: time each phase, waiting for the device in between.
    """

    prompt: str | Sequence[int] | None = None
    messages: Sequence[Mapping[str, Any]] | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    reasoning: str | None = None
    max_tokens: int = GenerateOptions.max_tokens
    sampling: SamplingOptions = SamplingOptions()
    stop: tuple[str, ...] = ()
    speculation: Speculation = "auto"
    block_size: int | None = None
    draft_tokens: int | None = None
    gate: bool = True
    reuse: bool = True
    profile: bool = False

    def __post_init__(self) -> None:
        if (self.prompt is None) == (self.messages is None):
            raise PromptError("a request has either a prompt or messages")
        if self.messages is None and (self.tools or self.reasoning is not None):
            raise PromptError("tools and reasoning go through a chat template: give messages")

    @property
    def chat(self) -> Chat | None:
        """The chat to render; None for a prompt."""
        if self.messages is None:
            return None
        return Chat(self.messages, self.tools, self.reasoning)

    def options(self, prefill_step_size: int) -> GenerateOptions:
        """As the decode loop takes them. Raises OptionError for values that no run could use."""
        return GenerateOptions(
            max_tokens=self.max_tokens,
            block_size=self.block_size,
            draft_tokens=self.draft_tokens,
            gate=self.gate,
            prefill_step_size=prefill_step_size,
            stop=self.stop,
            profile=self.profile,
            sampling=self.sampling,
        )


def make_request(
    options: GenerateOptions,
    speculation: Speculation,
    *,
    prompt: str | Sequence[int] | None = None,
    messages: Sequence[Mapping[str, Any]] | None = None,
    reuse: bool = True,
) -> Request:
    """The request that decodes a prompt, or messages, under these options."""
    return Request(
        prompt=prompt,
        messages=messages,
        max_tokens=options.max_tokens,
        sampling=options.sampling,
        stop=options.stop,
        speculation=speculation,
        block_size=options.block_size,
        draft_tokens=options.draft_tokens,
        gate=options.gate,
        reuse=reuse,
        profile=options.profile,
    )


@dataclass(frozen=True)
class Completion:
    """A finished request.

    identity: what may be said of its ids, None where nothing is. block: the rows of its passes.
    drafter_bits: bits a weight of its first drafter, None for plain decoding and MTP heads.
    promise: what was measured of the target's rows; adapter_path: the LoRA adapter over the target.
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None
    route: Route
    stats: GenerationStats
    identity: str | None
    block: Block
    drafter_bits: int | None
    sampling: SamplingOptions
    promise: Promise
    adapter_path: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The JSON document of a request, whichever command answered it."""
        plan = self.promise.plan
        return {
            "text": self.text,
            "token_ids": self.token_ids,
            "finish_reason": self.finish_reason,
            "prompt_tokens": self.stats.prompt_tokens,
            "speculation": {
                **self.route.to_dict(),
                "block": self.block.to_dict(),
                "drafter_bits": self.drafter_bits,
            },
            "identity": {
                "statement": self.identity,
                "exact": self.promise.asked,
                "plan": plan.to_dict() if plan else None,
            },
            "adapter_path": self.adapter_path,
            "sampling": self.sampling.to_dict(),
            "stats": self.stats.to_dict(),
        }
