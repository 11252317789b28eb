"""The small trained pair that ships with the package: where its files are.

May import: core's errors.
Used by: whoever takes a model reference.
"""
