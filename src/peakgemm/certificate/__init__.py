"""Certificates of products: what a product may be off, and whether it is. docs/certificate.md has the theorem.

A product of any library is looked at from outside: its operands and the result are read once or twice, in FP64, which
takes O(n^2) operations. Names are that page's: E is the error of C, G = |alpha| |A| |B| + |beta| |C0|, u = 2^-24.
"""

from __future__ import annotations

from .check import certify
from .verdict import Certificate, Certified

__all__ = ["Certificate", "Certified", "certify"]
