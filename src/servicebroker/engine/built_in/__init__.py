"""The services that every database has: Echo, Query and ServiceDiagnostic."""
