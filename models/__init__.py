"""The catalogue of known checkpoints, the bundle store, and the bundled demo model."""
