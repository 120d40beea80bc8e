"""Audio in: any file, stream, array or microphone, to mono samples and their log-mel."""
