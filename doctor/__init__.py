"""`dflash doctor`: does this pair fit, from config.json, headers and tokenizer files alone.

Failures come from the guards that the loaders call; warnings are what runs, and worse than it
could. Not covered: whether weights hold sense (that needs their data), and vision inputs.

The anchor for one repository is mlx-model-doctor 0.9.2 (Apache-2.0). Its checks of a text model
are matched here and not imported, because most of its warnings are the normal state of published
targets (no `quantization` key, pad = eos, eos ids that differ between files, keys under
`text_config` that it looks for at the top), it would read every header a second time, and its
extra pins mlx-lm below 0.32. What answers what:

    files.required, config.json, config.model_type   target.kind, target.config
    tokenizer.files                                  target.tokenizer
    chat_template.presence, .special_tokens          target.template
    generation_config.tokens                         target.eos (the union that decoding stops at)
    quantization.metadata, .mode, .shape             target.quantization, target.tensors
    safetensors.index                                target.files, target.index
    safetensors.offsets                              target.headers
    weights.param_count, weights.tied_embedding      target.tensors, target.tied
    memory.estimate                                  target.memory, pair.memory
    tokenizer.special_tokens (pad is eos)            none: one sequence is never padded
    compat signals (the repository's name, tags)     none: contents decide, not names
    smoke                                            `dflash generate -n 1`, which opens the weights
    vlm.*                                            none: text only
"""
