"""sa_doclock.opentelemetry, with OpenTelemetry's exporters in memory."""
