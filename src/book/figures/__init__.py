"""What the pages draw: the style, the colours, figures that move, models that run in a page."""
