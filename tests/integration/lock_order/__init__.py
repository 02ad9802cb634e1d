"""Many documents at once, and documents of several classes, in an order that cannot deadlock."""
