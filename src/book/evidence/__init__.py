"""What a number stands on: claims, records of studies, and what ran to make them."""
