"""The version of faster-whisper whose names and arguments this package has."""

__version__ = "1.2.1"
