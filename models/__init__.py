"""The catalogue of known checkpoints, and the store of bundles."""
