"""What can be evaluated: arms with their checkpoints, the untrained base, models by name, encoders, the first stage."""
