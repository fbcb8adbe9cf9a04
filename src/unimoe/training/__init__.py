"""Training of arms by gradients, and the run state that all trainers share."""
