"""Check-outs: of two people one gets a document, for minutes, and the other is told who."""
