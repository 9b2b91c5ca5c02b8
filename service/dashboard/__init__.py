"""The page: static files, and the build step that fetches its third-party files."""
