"""`dflash doctor`: its options as dataclasses, and one call."""

from __future__ import annotations

import typer

from ...core.options import LoadOptions, parse_dtype, parse_kernels
from ..actions.doctor import DoctorCall, run_doctor
from ..actions.probes import show_probes
from ..options import doctor as own
from ..options import model as load
from ..options.settings import given_options


def doctor(
    context: typer.Context,
    model: own.DiagnosedArgument = None,
    drafter: load.DrafterOption = LoadOptions.drafter,
    strict: own.StrictOption = False,
    verify: own.VerifyDataOption = False,
    probe: own.ProbeOption = False,
    probe_contexts: own.ProbeContextsOption = None,
    list_probes: own.ListProbesOption = False,
    clear_probes: own.ClearProbesOption = False,
    drafter_bits: load.DrafterBitsOption = LoadOptions.drafter_bits,
    dtype: load.DtypeOption = LoadOptions.dtype,
    kernels: load.KernelsOption = LoadOptions.kernels,
    as_json: own.DiagnosisJsonOption = False,
) -> None:
    """Check whether a target and a drafter fit, without opening their weights.

    Reads config.json, safetensors headers and tokenizer files; with --probe alone the weights
    too, as --drafter-bits, --dtype and --kernels say. Exit codes: 0 no failure, 1 failures (with
    --strict also warnings), 2 usage.
    """
    if list_probes or clear_probes:
        show_probes(clear=clear_probes, as_json=as_json)
        return
    loading = LoadOptions(
        model=model,
        drafter=drafter,
        drafter_bits=drafter_bits,
        dtype=parse_dtype(dtype),
        kernels=parse_kernels(kernels),
        stored_probe=False,
        exact=False,
    )
    unused = () if probe else given_options(context, ("drafter_bits", "dtype", "kernels"))
    run_doctor(DoctorCall(loading, strict, verify, probe, probe_contexts, as_json, unused))
