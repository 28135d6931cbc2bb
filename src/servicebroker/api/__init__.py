"""The Python face: instances, databases, transactions."""
