"""REST, WebSocket and page: what people and programs outside the process talk to."""
