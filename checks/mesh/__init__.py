"""The fork on eight devices: in this process where they are real, else in one that simulates."""
