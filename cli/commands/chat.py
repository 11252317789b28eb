"""`dflash chat`: its options as dataclasses, and one call."""

from __future__ import annotations

import typer

from ...core.options import (
    ChatOptions,
    GenerateOptions,
    LoadOptions,
    parse_dtype,
    parse_kernels,
    parse_mtp_hidden,
    parse_mtp_norms,
    parse_speculation,
)
from ...core.sampling_options import SamplingOptions
from ..actions.chat import ChatCall, run_chat
from ..actions.settings import show_settings_of
from ..options import decoding as decode
from ..options import model as load
from ..options import output as show
from ..options import prompt as ask
from ..options import sampling as sample


def chat(
    context: typer.Context,
    system: ask.SystemOption = None,
    reasoning: ask.ReasoningOption = None,
    model: load.ModelOption = LoadOptions.model,
    drafter: load.DrafterOption = LoadOptions.drafter,
    mtp: load.MtpOption = LoadOptions.mtp,
    adapter_path: load.AdapterPathOption = LoadOptions.adapter_path,
    speculation: load.SpeculationOption = LoadOptions.speculation,
    block_size: decode.BlockSizeOption = GenerateOptions.block_size,
    draft_tokens: decode.DraftTokensOption = GenerateOptions.draft_tokens,
    gate: decode.GateOption = GenerateOptions.gate,
    stored_probe: load.StoredProbeOption = LoadOptions.stored_probe,
    exact: load.ExactOption = LoadOptions.exact,
    temperature: sample.TemperatureOption = SamplingOptions.temperature,
    top_p: sample.TopPOption = SamplingOptions.top_p,
    top_k: sample.TopKOption = SamplingOptions.top_k,
    min_p: sample.MinPOption = SamplingOptions.min_p,
    seed: sample.SeedOption = SamplingOptions.seed,
    repetition_penalty: sample.RepetitionPenaltyOption = SamplingOptions.repetition_penalty,
    presence_penalty: sample.PresencePenaltyOption = SamplingOptions.presence_penalty,
    frequency_penalty: sample.FrequencyPenaltyOption = SamplingOptions.frequency_penalty,
    penalty_window: sample.PenaltyWindowOption = SamplingOptions.penalty_window,
    logit_bias: sample.LogitBiasOption = None,
    max_tokens: decode.MaxTokensOption = ChatOptions.max_tokens,
    stop: decode.StopOption = None,
    hide_reasoning: show.HideReasoningOption = ChatOptions.hide_reasoning,
    quiet: show.QuietOption = False,
    drafter_bits: load.DrafterBitsOption = LoadOptions.drafter_bits,
    dtype: load.DtypeOption = LoadOptions.dtype,
    kernels: load.KernelsOption = LoadOptions.kernels,
    mtp_hidden: load.MtpHiddenOption = LoadOptions.mtp_hidden,
    mtp_norms: load.MtpNormsOption = LoadOptions.mtp_norms,
    prefill_step_size: decode.PrefillStepSizeOption = GenerateOptions.prefill_step_size,
    show_settings: show.ShowSettingsOption = False,
) -> None:
    """A conversation in the terminal; in a pipe each line is a turn, and stdout has answers alone.

    /help lists the commands; Ctrl-C ends an answer, Ctrl-D the chat.
    """
    if show_settings:
        show_settings_of(context, as_json=False)
        return
    chances = SamplingOptions(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        penalty_window=penalty_window,
        logit_bias=sample.parse_logit_bias(logit_bias),
    )
    options = GenerateOptions(
        max_tokens=max_tokens,
        block_size=block_size,
        draft_tokens=draft_tokens,
        gate=gate,
        prefill_step_size=prefill_step_size,
        stop=tuple(stop or ()),
        sampling=chances,
    )
    loading = LoadOptions(
        model=model,
        drafter=drafter,
        speculation=parse_speculation(speculation),
        mtp=mtp,
        adapter_path=adapter_path,
        mtp_hidden=parse_mtp_hidden(mtp_hidden),
        mtp_norms=parse_mtp_norms(mtp_norms),
        drafter_bits=drafter_bits,
        dtype=parse_dtype(dtype),
        kernels=parse_kernels(kernels),
        stored_probe=stored_probe,
        exact=exact,
    )
    run_chat(ChatCall(loading, options, system, reasoning, hide_reasoning, quiet))
