"""Times in words."""


def duration(seconds: float) -> str:
    """Return a time in words, by its two largest units."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} days"
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min" if minutes >= 10 else f"{minutes} min {rest:02} s"
