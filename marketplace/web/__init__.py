"""HTML pages and static files. Views are thin: they call the services and selectors of the other apps."""
