"""The asyncio form of what talks to PostgreSQL. The files beside this folder are made from it (tools/make_sync.py)."""
