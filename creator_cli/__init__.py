"""The `intarsia` command. Imports typer, rich, httpx, platformdirs and `sealed_weights`; never torch, never Django."""
