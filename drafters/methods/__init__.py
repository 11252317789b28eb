"""The ways to draft (DFlash, MTP): a module for each, and a row in the table.

May import: core, and what reads a drafter's or head's files; a row imports those when it is used.
Used by: pairs, the engine, benchmarks and the doctor.
"""
