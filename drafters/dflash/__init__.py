"""DFlash and DFlash2 drafters: config.json, tensors, modules, drafts.

May import: core, and the table of kinds.
Used by: slabs, pairs, the doctor.
"""
