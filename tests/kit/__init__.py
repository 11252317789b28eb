"""Helpers of the tests: tiny models, doubles, naive references, stand-ins.

May import: the suite.
Used by: tests and long scripts.
"""
