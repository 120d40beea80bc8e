"""The drafter `draft`: a smaller Whisper that drafts for the target (OmniDraft)."""
