"""The page and the report in a browser."""
