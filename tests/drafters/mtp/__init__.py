"""Tests of drafters/mtp."""
