"""Tests of core/cache."""
