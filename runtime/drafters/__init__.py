"""Everything that drafts: what each drafter guesses, and whether its drafts pay."""
