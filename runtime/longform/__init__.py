"""Whole recordings: windows, prompts, fallback, word times, live text."""
