"""Transcripts as text and files."""
