"""Personal data in requests: what a policy says, where it is found, how it is taken out and put back. Knows no app."""
