"""Drafts for published Whisper models, a file each, named by its model's fingerprint (export/draft_layers.py)."""
