"""One module per part of the site. A view parses, calls a service or selector, and renders."""
