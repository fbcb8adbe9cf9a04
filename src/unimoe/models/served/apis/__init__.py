"""The APIs of servers, one file each."""
