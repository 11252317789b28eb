"""Tests of core/cuda."""
