"""Walks of people through the real platform: they click, read and type what screens and mails say, and nothing else."""
