"""A target's own MTP head as a drafter: found, loaded, chained.

May import: core.
Used by: pairs and the doctor.
"""
