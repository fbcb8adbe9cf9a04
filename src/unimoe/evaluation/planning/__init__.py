"""What an evaluation would do and take, before it runs."""
