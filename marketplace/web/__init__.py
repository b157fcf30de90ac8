"""The HTML pages: server-rendered templates and htmx."""
