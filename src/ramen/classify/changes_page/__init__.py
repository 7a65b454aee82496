"""One page that shows what adaptation changed, for people who look before they trust."""
