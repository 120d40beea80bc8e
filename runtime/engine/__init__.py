"""Graphs at work: sessions, the encoder, the decoder's passes, and what they do to memory."""
