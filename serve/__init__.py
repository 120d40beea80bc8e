"""`specedge serve`: transcription over HTTP, WebSocket and Wyoming, for many callers of one model."""
