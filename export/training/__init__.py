"""Training of CTC heads, Medusa and multi-token heads, and draft models (extra [train])."""
