"""Drafters (DFlash, DFlash2, MTP heads), their checkpoints, and the guards that pair them."""
