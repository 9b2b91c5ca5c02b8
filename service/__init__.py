"""Everything that touches the world: feed, worker, storage, API, page."""
