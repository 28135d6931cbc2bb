"""The asyncio form of the modules that talk to PostgreSQL. The files beside this folder are made from it."""
