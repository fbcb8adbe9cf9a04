"""What is evaluated, one file a task: each describes an evaluation of a system, runs it, and has what it measures."""
