"""unimoe: is it worth going on? Trains, evaluates and judges retrieval models."""
