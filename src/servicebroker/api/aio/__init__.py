"""The asyncio face. The files beside this folder are made from it (tools/make_sync.py)."""
