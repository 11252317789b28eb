"""Tests of core/checkpoint."""
