"""One window: rules, choices, verification, beams, and what passes cost."""
