"""Messages of the contract to domain types and back."""
