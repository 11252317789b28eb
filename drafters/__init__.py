"""Drafters (DFlash, DFlash2), their checkpoints, and the guards that pair them with a target."""
