"""Settings chosen on images that are held back."""
