"""The documentation as a part of the site: pages of `docs/`, and a reference made of the OpenAPI description."""
