"""The Django project: accounts, catalogue, vault, control API, web pages, the metered gateway."""
