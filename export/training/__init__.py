"""The recipe of the bundled demo models: speech synthesis, training, evaluation (extra [train])."""
