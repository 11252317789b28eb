"""Tests of doctor/probe."""
