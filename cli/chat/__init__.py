"""`dflash chat`: a session, its commands, chats as files, lines in, answers out.

May import: `input`, `text`, core and drafters.
Used by: `actions`.
"""
