"""Runs statements: a machine that asks what each kind of statement does, and a file for each subject."""
