"""Tests of core/loading."""
