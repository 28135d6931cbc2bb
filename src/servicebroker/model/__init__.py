"""Plain values: names, states, messages, errors. No I/O, no clock, no randomness."""
