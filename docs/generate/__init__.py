"""What makes the pages of docs/: tables, plots, chapters, the site."""
