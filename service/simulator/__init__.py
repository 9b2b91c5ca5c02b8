"""An exchange on loopback that speaks Binance's public spot protocol, its faults on demand and its truth open."""
