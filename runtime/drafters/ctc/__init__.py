"""What the encoder heard, by a CTC head, as tokens."""
