"""How the bundled demo models were made: speech synthesis, training, evaluation. Not in the wheel."""
