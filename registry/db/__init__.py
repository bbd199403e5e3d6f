"""Rows and the SQL over them: one file per noun, and no SQL anywhere else in the registry."""
