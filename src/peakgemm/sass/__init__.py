"""Below the assembler's surface: what SASS costs, and later how to rewrite it."""
