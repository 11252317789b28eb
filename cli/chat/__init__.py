"""`dflash chat`: the session and its commands, the file it is saved to, lines in, answers out.

May import: `input`, `text`, core and drafters.
Used by: `actions`.
"""
