"""Tests of core/decode."""
