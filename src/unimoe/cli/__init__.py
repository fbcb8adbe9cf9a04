"""The command line: a file for each command of the main line, and the options they share."""
