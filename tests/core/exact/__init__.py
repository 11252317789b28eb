"""Tests of core/exact."""
