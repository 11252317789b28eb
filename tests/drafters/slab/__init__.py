"""Tests of drafters/slab."""
