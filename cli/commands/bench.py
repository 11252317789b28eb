"""`dflash bench`: its options as dataclasses, and one call."""

from __future__ import annotations

from ...core.bench.options import BenchOptions
from ...core.options import LoadOptions, parse_dtype, parse_kernels
from ..actions.bench import ArmsAsked, BenchCall, PromptsAsked, Written, run_bench
from ..options import bench as own
from ..options import model as load
from ..options import output as show


def bench(
    model: load.ModelOption = LoadOptions.model,
    drafter: load.DrafterOption = LoadOptions.drafter,
    drafter_bits: load.DrafterBitsOption = LoadOptions.drafter_bits,
    mtp: load.MtpOption = LoadOptions.mtp,
    adapter_path: load.AdapterPathOption = LoadOptions.adapter_path,
    ab: own.AbOption = None,
    arm: own.ArmOption = None,
    sweep: own.SweepOption = None,
    prompts: own.PromptsOption = None,
    prompt_set: own.PromptSetOption = None,
    max_prompts: own.MaxPromptsOption = None,
    max_tokens: own.AnswerTokensOption = BenchOptions.max_tokens,
    repeats: own.RepeatsOption = BenchOptions.repeats,
    dtype: load.DtypeOption = LoadOptions.dtype,
    kernels: load.KernelsOption = LoadOptions.kernels,
    stored_probe: load.StoredProbeOption = LoadOptions.stored_probe,
    exact: load.ExactOption = LoadOptions.exact,
    as_json: own.TablesJsonOption = False,
    as_csv: own.CsvOption = False,
    markdown: own.MarkdownOption = False,
    plot: own.PlotOption = None,
    quiet: show.QuietOption = False,
) -> None:
    """Compare ways to decode: same prompts, same run, arms in alternating order.

    Tables go to stdout, progress to stderr. Ctrl-C keeps what was measured.
    """
    loading = LoadOptions(
        model=model,
        drafter=drafter,
        mtp=mtp,
        adapter_path=adapter_path,
        drafter_bits=drafter_bits,
        dtype=parse_dtype(dtype),
        kernels=parse_kernels(kernels),
        stored_probe=stored_probe,
        exact=exact,
    )
    run_bench(
        BenchCall(
            loading,
            BenchOptions(max_tokens=max_tokens, repeats=repeats),
            ArmsAsked(ab, tuple(arm or ()), sweep),
            PromptsAsked(prompts, tuple(prompt_set or ()), max_prompts),
            Written(as_json, as_csv, markdown, plot, quiet),
        )
    )
