"""What every room stands on: errors, atomic files, TREC files, the console, things found by name."""
