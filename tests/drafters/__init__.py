"""Tests of drafters."""
