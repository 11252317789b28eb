"""The commands, a file each: options -> one call below -> text or a document.

May import: the other packages of cli, and everything below.
Used by: `app`.
"""
