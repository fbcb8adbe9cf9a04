"""Projection heads over a frozen encoder, trained by evolution or by gradients on the same pools."""
