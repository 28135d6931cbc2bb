"""CREATE, ALTER and DROP, and the bodies of functions."""
