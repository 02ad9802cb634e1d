"""Check-outs: of two people one gets a document, for minutes, and the other learns who."""
