"""The asyncio API. tools/make_sync.py makes the blocking API beside this folder from it."""
