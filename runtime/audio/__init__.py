"""Audio in: files, pipes, microphones and arrays to samples, samples to mel, and where speech is."""
