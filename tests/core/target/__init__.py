"""Tests of core/target."""
