"""How trained models are scored on standard collections, and what they are scored through."""
