"""Training the arms of an experiment."""
