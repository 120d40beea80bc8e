"""Where there is speech: voice activity, and audio cut at its pauses."""
