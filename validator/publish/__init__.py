"""Views of a table: Table -> text, one file per format."""
