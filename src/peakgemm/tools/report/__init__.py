"""`peakgemm report`: records as one page, and the tables and plots of the project's own pages."""

from .data import Data, Source, load
from .page import page, write_page

__all__ = ["Data", "Source", "load", "page", "write_page"]
