"""Installed beside specedge_faster_whisper.pth, which puts the folder of specedge's faster_whisper last on the path."""
