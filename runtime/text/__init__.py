"""Token ids and text: byte pairs, special tokens, languages, words."""
