"""A model on disk: its files, its manifest, and which one is meant."""
