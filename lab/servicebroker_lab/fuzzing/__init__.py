"""Random bodies for the decoders of the pipeline, and what becomes of them.

A case has a number, from which its schema and its body are made: a valid body, then changed in ways that cost decoders
much (lengths that lie, parts repeated a thousand times, nesting). Cases run one after the other in a process that may
be lost, with limits of memory and time. A decoder has failed when it raises anything but `Undecodable`, ends its
process or goes beyond a limit.
"""
