"""What every process needs: API client, status writer, store, queue, Lease, metrics, health, settings, logs."""
