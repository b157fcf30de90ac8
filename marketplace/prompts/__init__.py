"""Prompts that an organization keeps, encrypted, with the versions of models that they were tried on."""
