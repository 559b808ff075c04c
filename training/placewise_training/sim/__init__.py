"""The proving ground: an event-driven cluster on a manual clock that hosts the service's own policies."""
