"""Tests of drafters/dflash."""
