"""Token statistics: vocabularies, token maps and the online n-gram cache (numpy and the standard library)."""
